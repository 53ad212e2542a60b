"""Contenders in processes of their own."""

import sys
from pathlib import Path

import pytest

from nightly.benchmarks.child import Child

FOLDER = Path(__file__).parents[3] / "nightly" / "benchmarks"


@pytest.fixture
def script(tmp_path):
    """Return a function that writes a child, and returns the command that runs it."""

    def write(body: str) -> list[str]:
        path = tmp_path / "child.py"
        path.write_text(
            f"import sys; sys.path.insert(0, {str(FOLDER)!r})\nfrom answering import Line, serve\n{body}\n"
        )
        return [sys.executable, str(path)]

    return write


def test_it_runs_an_epoch_on_each_request(script, tmp_path):
    log = tmp_path / "log"
    body = f"serve(lambda: (print('noise'), [open({str(log)!r}, 'a').write('.'), 0.5])[1])"
    with Child(script(body)) as child:
        assert child.greeting == "ready"
        assert not log.exists()
        for _ in range(3):
            seconds, *figures = child.ask()
            assert 0 < seconds < 1 and figures == [1, 0.5]
        assert log.read_text() == "..."
    assert child._process.returncode == 0


def test_waiting_is_not_timed(script):
    body = "clock = iter([-7.0, 0.0, 2.5, 100.0, 101.5, 200.0])\nline = Line(lambda: next(clock))\n"
    with Child(script(body + "while line.turn(): pass")) as child:
        assert [child.ask(), child.ask()] == [[2.5], [1.5]]


def test_a_child_that_cannot_start_is_an_error(script):
    with pytest.raises(RuntimeError, match="(?s)child.py ended with code 1:.*ValueError: no"):
        Child(script("raise ValueError('no')"))
