"""What is in a run's folder is read; what is not, or is damaged, is told."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Callable

import pytest

from multifit.history import History
from multifit.plan import Plan
from multifit.report import read_run

from .conftest import PNG


def test_a_whole_run(write: Callable[..., Path], plan: Plan, history: History) -> None:
    run = read_run(write())
    assert (run.plan, run.plan_text, run.history) == (plan, str(plan), history)
    assert run.record["settings"] == {"rate": 0.1}
    assert run.pictures == {"samples": PNG}  # neither the curves nor one that is being written
    assert run.missing == []


@pytest.mark.parametrize("name", ["settings.json", "plan.json", "plan.txt", "history.json"])
def test_what_is_missing_is_told_and_the_rest_is_there(write: Callable[..., Path], name: str) -> None:
    folder = write()
    (folder / name).unlink()
    run = read_run(folder)
    assert run.missing == [f"{name}: No such file or directory"]
    there = {
        "settings.json": bool(run.record),
        "plan.json": run.plan is not None,
        "plan.txt": bool(run.plan_text),
        "history.json": bool(run.history),
    }
    assert [each for each, found in there.items() if not found] == [name]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("settings.json", b"{", "settings.json cannot be read: Expecting property name"),
        ("settings.json", b"[1]", "settings.json cannot be read: it must be an object"),
        ("plan.json", b"\xff\xfe\x00", "plan.json cannot be read: "),
        ("plan.json", b"{}", "plan.json cannot be read: not a plan: KeyError: 'devices'"),
        ("plan.txt", b"\xff", "plan.txt cannot be read: 'utf-8' codec"),
        ("history.json", b"[1]", "history.json cannot be read: not a history"),
        ("history.json", b"", "history.json cannot be read: "),
        ("samples.png", b"GIF89a", "samples.png cannot be read: it is no PNG"),
    ],
)
def test_what_is_damaged_is_told(write: Callable[..., Path], name: str, content: bytes, message: str) -> None:
    folder = write()
    (folder / name).write_bytes(content)
    (told,) = read_run(folder).missing
    assert told.startswith(message)


@pytest.mark.parametrize("name", ["nowhere", "empty", "file"])
def test_what_is_no_run_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=re.escape(f"{tmp_path / name} is no folder of a run: there is no ")):
        read_run(tmp_path / name)
