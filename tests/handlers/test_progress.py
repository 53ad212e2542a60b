"""ProgressBar, with the real tqdm on a text stream."""

from __future__ import annotations

import io
import sys
import types
from typing import Any

import pytest
import tqdm.auto
import tqdm.std

from multifit.handlers import ProgressBar, ValidationHandler

from .conftest import At


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")


def drawn(stream: io.StringIO) -> list[str]:
    """Return everything that was drawn, one entry per drawing."""
    return [text for text in stream.getvalue().replace("\n", "\r").split("\r") if text.strip()]


def test_a_bar_for_training_and_one_for_validation(run: Any, clock: Any) -> None:
    stream = Terminal()
    run.max_epoch = 2
    run.fit(ProgressBar(stream, refresh=0, clock=clock), ValidationHandler("data"), epochs=2)
    text = stream.getvalue()
    for part in ("epoch 1/2:   0%", "epoch 2/2: 100%", "3/3", "evaluate: 100%", "2/2"):
        assert part in text
    assert "loss 0.1667" in text
    assert "loss 0.6667" in text


@pytest.mark.parametrize(
    ("columns", "figures", "text"),
    [
        (80, None, "loss 0.5000"),
        (100, None, "loss 0.5000  accuracy 0.5000"),
        (130, None, "loss 0.5000  accuracy 0.5000  size 0.5000"),
        (130, "train_size.*", "size 0.5000  size.far 0.5000"),
    ],
)
def test_the_figures_that_fit_the_terminal_are_shown(
    run: Any, clock: Any, monkeypatch: pytest.MonkeyPatch, columns: int, figures: Any, text: str
) -> None:
    monkeypatch.setenv("COLUMNS", f"{columns}")
    monkeypatch.setattr(tqdm.std.tqdm, "set_postfix_str", lambda bar, text: texts.add(text))
    texts: set[str] = set()
    run.train = lambda state: {f"train_{n}": 0.5 for n in ("loss", "digit", "size", "size.far", "accuracy")}
    run.fit(ProgressBar(Terminal(), refresh=0, clock=clock, figures=figures))
    assert texts == {text}


def test_a_terminal_that_does_not_move_its_cursor_gets_no_bars(
    run: Any, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    for enabled, bars in ((None, False), (True, True)):
        stream = Terminal()
        run.fit(ProgressBar(stream, refresh=0, clock=clock, enabled=enabled), ValidationHandler("data"))
        assert bool(stream.getvalue()) == bars


def test_bars_disappear_when_they_are_done(run: Any, clock: Any) -> None:
    stream = Terminal()
    run.fit(ProgressBar(stream, clock=clock), epochs=3)
    assert stream.getvalue().split("\r")[-2].strip() == ""
    assert "\n" not in stream.getvalue()
    assert not tqdm.auto.tqdm._instances


@pytest.mark.parametrize(
    ("refresh", "steps"),
    [(0, [1, 2, 3, 4, 5, 6]), (2, [2, 4, 6]), (4, [4]), (100, [])],
)
def test_figures_are_read_at_most_once_per_refresh(
    run: Any, clock: Any, refresh: float, steps: list[int]
) -> None:
    stream = Terminal()
    run.fit(ProgressBar(stream, refresh=refresh, clock=clock), epochs=2)
    assert run.read == [("train", step) for step in steps]
    assert sum("loss" in text for text in drawn(stream)) >= len(steps)


def test_all_bars_share_the_refresh(run: Any, clock: Any) -> None:
    run.fit(ProgressBar(Terminal(), refresh=3, clock=clock), ValidationHandler("data"), epochs=3)
    # Seconds 3 | 4 5 | 8 | 10 | 13 | 15: the clock goes on in the evaluations, two seconds each.
    assert run.read == [("train", 3), ("train", 4), ("evaluate", 6), ("train", 8), ("evaluate", 9)]


def test_a_slow_reading_is_not_followed_by_another(run: Any, clock: Any) -> None:
    def slow(state: Any) -> dict[str, float]:
        clock.now += 10.0
        return {"train_loss": 0.0}

    run.train = slow
    run.fit(ProgressBar(Terminal(), refresh=2, clock=clock), batches=5)
    assert run.read == [("train", 2), ("train", 4)]


def test_by_default_bars_are_drawn_in_terminals_only(run: Any, clock: Any) -> None:
    stream = io.StringIO()
    run.fit(ProgressBar(stream, refresh=0, clock=clock), ValidationHandler("data"))
    assert stream.getvalue() == ""
    assert run.read == []


def test_bars_are_drawn_in_notebooks_without_moving_a_cursor(
    run: Any, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = types.SimpleNamespace(kernel=None)
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    stream = io.StringIO()
    bar = ProgressBar(stream, refresh=0, clock=clock)
    run.fit(bar, ValidationHandler("data", epoch_period=None, batch_period=2), batches=4, epochs=2)
    text = stream.getvalue()
    assert all(part in text for part in ("epoch 1", "epoch 2", "evaluate: 100%", "loss 1.0000"))
    assert "\n" not in text and "\x1b" not in text
    line = ""  # what is shown, as each drawing is written over the one before
    for drawing in text.split("\r"):
        line = drawing + line[len(drawing) :]
        assert line.count("it/s") + line.count("batches/s") <= 1
    assert line.strip() == ""


@pytest.mark.parametrize(("stream", "enabled"), [(io.StringIO(), True), (Terminal(), False)])
def test_bars_can_be_enabled_and_disabled(run: Any, clock: Any, stream: io.StringIO, enabled: bool) -> None:
    run.fit(ProgressBar(stream, clock=clock, enabled=enabled))
    assert bool(stream.getvalue()) is enabled


def test_stderr_is_looked_up_when_a_bar_is_opened(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bar = ProgressBar()
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    run.fit(bar)
    assert "epoch 1" in stream.getvalue()


@pytest.mark.parametrize("enabled", [None, True])
def test_a_closed_stderr_shows_nothing(
    run: Any, monkeypatch: pytest.MonkeyPatch, enabled: bool | None
) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    run.fit(ProgressBar(enabled=enabled), epochs=2)
    assert run.state.step == 6


def test_without_a_length_the_bar_counts(run: Any, clock: Any) -> None:
    stream = Terminal()
    run.fit(ProgressBar(stream, refresh=0, clock=clock), known=False)
    assert "3 batches" in stream.getvalue()


def test_bars_left_open_by_an_aborted_fit_are_closed(run: Any, clock: Any) -> None:
    def abort(estimator: Any) -> None:
        raise KeyboardInterrupt

    bar = ProgressBar(Terminal(), clock=clock)
    with pytest.raises(KeyboardInterrupt):
        run.fit(bar, At("batch_end", abort))
    assert len(tqdm.auto.tqdm._instances) == 1
    run.fit(bar, epochs=0)
    assert not tqdm.auto.tqdm._instances
