"""Resumed runs that had finished or were ended by Ctrl-C, and the states of their handlers."""

import json
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from multifit import EarlyStoppingHandler, Every
from multifit.handlers import StoppingHandler, WeightAveraging
from multifit.handlers.plateau import PlateauHandler
from tests.common.nets import two_heads

from .resume_runs import BATCHES, EPOCHS, STEPS, TWO, At, Run, end_without_stop, simple_run, unequal

ALL, EPOCH = {"epochs": EPOCHS}, Every(1, "epoch")


def ctrl_c(*place: Any) -> At:
    """Return a handler that sends the signal at an event of a step."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return At(*place, action=partial(signal.raise_signal, signal.SIGINT))


# ---- finished runs -----------------------------------------------------------------------------------------


# how far a run was trained before, how far then, what the log says and why it stopped
@pytest.mark.parametrize(
    ("first", "then", "line", "reason"),
    [
        ({"batches": 8}, {"batches": STEPS}, "resuming from epoch-0002-step-00000008", f"{STEPS} batches"),
        ({"epochs": 1}, ALL, "resuming from epoch-0001-step-00000005: epoch 2", "2 epochs"),
        (None, ALL, "no checkpoint in", "2 epochs"),
    ],
    ids=["batches", "epochs", "from scratch"],
)
def test_a_run_can_be_extended(tmp_path, log, first, then, line, reason):
    run = Run(tmp_path / "run")
    if first is not None:
        run.fit(**first)
    run.resume(**then)
    assert unequal(run.end(), {**end_without_stop(run), "reason": reason}) == []
    assert any(logged.startswith(line) for logged in log())


# the last batch, where a run was cut off after it, checkpoints, limits, and what stops a run before them
FINISHED: dict[str, tuple[int, str | None, Any, dict[str, int], Callable[[], list[Any]]]] = {
    "batches": (8, None, EPOCH, {"batches": 8}, list),
    "batches of whole epochs": (STEPS, "evaluate_batch_end", TWO, {"batches": STEPS}, list),
    "a handler of ours": (8, "train_end", EPOCH, {"epochs": 3}, lambda: [StoppingHandler(max_batch=8)]),
    "any handler": (8, "train_end", Every(3, "batch"), {"epochs": 3},
        lambda: [At(8, priority=0.0, action=lambda: True)]),
}  # fmt: skip


@pytest.mark.parametrize("stop", FINISHED)
def test_a_run_that_is_finished_ends_again_as_it_did(tmp_path: Path, log: Any, stop: str) -> None:
    """What of its end was cut off is made up for."""
    step, cut, every, limits, stops = FINISHED[stop]

    def handlers() -> list[Any]:
        return [
            EarlyStoppingHandler("val_loss", patience=9, min_delta=100, restore_best=True),
            WeightAveraging("swa", apply=False),
            *stops(),
        ]

    run = Run(tmp_path / "run", "list", every=every, handlers=handlers)
    whole = end_without_stop(run, stop, **limits)
    assert None not in json.loads(whole["history"])["val_loss"]  # as NaN would be
    if cut is None:
        run.fit(**limits)
    else:
        run.crash(step, cut, 0.0, **limits)
    for _ in range(2):
        written = saved_checkpoints(run)
        run.resume(**limits)
        assert unequal(run.end(), whole) == []
    assert saved_checkpoints(run) == written
    assert any(line.startswith("the run had finished: ") for line in log())


def saved_checkpoints(run: Run) -> list[tuple[str, int]]:
    """Return the checkpoints and when they were written."""
    return sorted((path.name, path.stat().st_mtime_ns) for path in (run.folder / "checkpoints").iterdir())


def test_a_run_that_a_handler_stopped_goes_on_only_if_it_is_extended(tmp_path: Path, caplog: Any) -> None:
    run = Run(tmp_path / "run")
    run.fit(At(5, "epoch_end", 0.0, lambda: True), epochs=3)
    run.resume(epochs=3)
    assert run.estimator.state.epoch == 1
    (warning,) = (record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    assert warning == "the run had finished: At; nothing is trained: to go on, resume with more than epochs=3"
    run.resume(epochs=4)
    assert run.estimator.state.epoch == 4


# ---- Ctrl-C ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("every", "data"), [(None, "loader"), (EPOCH, "iter"), (TWO, "loader")], ids=str)
def test_ctrl_c_within_an_epoch(tmp_path: Path, log: Any, every: Any, data: str) -> None:
    run = simple_run(tmp_path / "run", every)
    run.data = data
    for step, resume in ((4, None), (8, run.folder)):
        run.fit(ctrl_c(step, "batch_end", -1), resume=resume)
        assert (run.estimator.state.stop_reason, run.estimator.state.step) == ("SIGINT", step)
    history = run.resume()
    assert run.estimator.state.step == STEPS
    # logged when such a checkpoint is written, and when it is read
    assert sum("not bit for bit" in line for line in log()) == (0 if every is TWO else 4)
    # each epoch measured every sample once
    assert history["train_loss"] == pytest.approx([history["train_loss"][0]] * EPOCHS, rel=1e-6)


class Counts:
    """A handler of a user, which counts and does not ask whether the fit was interrupted."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def epoch_end(self, estimator: Any) -> None:
        self.counts["epochs"] = self.counts.get("epochs", 0) + 1
        estimator.history.record({"ends": self.counts["epochs"]})

    def state_dict(self) -> dict[str, int]:
        return self.counts

    def load_state_dict(self, state: Any) -> None:
        self.counts = dict(state)


@pytest.mark.parametrize(
    ("event", "priority", "every"),
    [
        ("batch_begin", 0.0, TWO),  # of the last batch: the resumed run validates
        ("batch_end", 1200.0, EPOCH),  # from here on, the epoch ends as if there were no signal
        ("epoch_end", -9000.0, TWO),
        ("evaluate_batch_end", 0.0, EPOCH),
        ("epoch_end", 9000.0, EPOCH),
        ("epoch_begin", 0.0, TWO),
    ],
    ids=str,
)
def test_an_epoch_counts_once_wherever_ctrl_c_comes(tmp_path, event, priority, every):
    def handlers() -> list[Any]:
        return [
            EarlyStoppingHandler("val_loss", patience=3, min_delta=100),
            PlateauHandler("val_loss", factor=0.5, patience=2, min_delta=100),
            WeightAveraging("swa"),
            Counts(),
        ]

    # without dropout, a checkpoint outside of the schedule is exact too
    run = Run(tmp_path / "run", "list", 1, every, lambda: two_heads("hybrid"), handlers=handlers)
    whole = end_without_stop(run, "Ctrl-C", epochs=9)
    for epoch in (1, 3):  # the first, and the one after which rates fall
        step = epoch * BATCHES - (event == "batch_begin")
        run.fit(ctrl_c(step, event, priority), epochs=9, resume=None if epoch == 1 else run.folder)
        assert run.estimator.state.interrupted
    run.resume(epochs=9)
    assert run.estimator.state.epoch == 4 and "val_loss" in run.estimator.state.stop_reason
    assert unequal(run.end(), whole) == []


def test_a_reason_to_stop_outlives_ctrl_c(tmp_path: Path) -> None:
    """A run that stops by itself at the end of an epoch is not trained on because of a signal there."""
    run = Run(tmp_path / "run", "list")
    run.handlers = lambda: [EarlyStoppingHandler("val_loss", patience=1, min_delta=100)]
    run.fit(ctrl_c(2 * BATCHES, "evaluate_begin", 0.0), epochs=9)
    assert run.estimator.state.interrupted
    run.resume(epochs=9)
    assert run.estimator.state.epoch == 2 and "val_loss" in run.estimator.state.stop_reason


# ---- states of handlers ------------------------------------------------------------------------------------


class Named:
    """Remembers the name that it was given first."""

    def __init__(self, monitor: Any = None, width: int = 1, log: Any = None, **others: Any) -> None:
        self.monitor, self.width, self.log = monitor, width, log
        self.first = self.name = others.get("name")

    mode = "min"

    def epoch_end(self, estimator: Any) -> None:
        """An event, so that it is a handler."""

    def state_dict(self) -> dict[str, Any]:
        return {"name": self.first}

    def load_state_dict(self, state: Any) -> None:
        self.first = state["name"]


def bare(name: str) -> Any:
    """Return a handler of a class without a signature."""
    made = SimpleNamespace(epoch_end=lambda estimator: None, first=name, name=name)
    made.state_dict = lambda: {"name": made.first}
    made.load_state_dict = lambda state: vars(made).update(first=state["name"])
    return made


def named(name: str, *arguments: Any, **options: Any) -> Any:
    return Named(*arguments, **options, name=name)


VAL, TRAIN, BOTH = "val_loss", "train_loss", ["val_loss", "train_loss"]


def best(figures: Any) -> float:
    return figures[VAL]


# What was saved, what resumes, and the name of the state that each of these has then.
CASES: dict[str, tuple[list[Any], list[Any], list[str]]] = {
    "the same": ([named("a", VAL), named("b", TRAIN)], [named("c", VAL), named("d", TRAIN)], ["a", "b"]),
    "another order": ([named("a", VAL), named("b", BOTH)], [named("c", BOTH), named("d", VAL)], ["b", "a"]),
    "one left out": ([named("a", VAL), named("b", TRAIN)], [named("c", TRAIN)], ["b"]),
    "another one": ([named("a", VAL)], [named("c", TRAIN)], ["c"]),
    "one more": ([named("a", best)], [named("c", VAL), named("d", best)], ["c", "a"]),
    "other options": ([named("a", VAL, 2)], [named("c", VAL, 3)], ["a"]),
    "alike": ([named("a"), named("b")], [named("c"), named("d")], ["a", "b"]),
    "without a signature": ([bare("a"), bare("b")], [bare("c"), bare("d")], ["a", "b"]),
    "in Every": ([Every(1, "epoch", named("a", VAL))], [Every(2, "epoch", named("c", VAL))], ["a"]),
}  # fmt: skip


@pytest.mark.parametrize(("saved", "here", "expected"), CASES.values(), ids=CASES)
def test_a_state_goes_to_the_handler_that_is_the_same(tmp_path, log, saved, here, expected):
    run = simple_run(tmp_path, Every(1, "batch"))
    run.fit(*saved, batches=1)
    run.resume(*here, batches=2)
    assert [handler.first for handler in here] == expected
    lost = len(saved) - sum(handler.first != handler.name for handler in here)
    assert sum("which this fit does not have" in line for line in log()) == lost


def test_the_log_names_the_figure_of_a_handler_that_was_left_out(tmp_path: Path, log: Any) -> None:
    run = simple_run(tmp_path, Every(1, "epoch"))
    stops = [EarlyStoppingHandler(VAL, patience=9), EarlyStoppingHandler(TRAIN, patience=9, baseline=0.001)]
    run.fit(*stops, StoppingHandler(max_seconds=1e9), WeightAveraging(), WeightAveraging("swa"), epochs=2)
    stop, ema = EarlyStoppingHandler(TRAIN, patience=9, baseline=0.001), WeightAveraging()
    run.resume(stop, ema, epochs=3)
    assert run.estimator.state.epoch == 3  # the default StoppingHandler has its own counts
    assert stop.state_dict()["best"] == {TRAIN: 0.001} and stop.state_dict()["waited"] == 3
    assert ema.state_dict()["count"] == 15
    lost = sorted(line for line in log() if "which this fit does not have" in line)
    assert [line[len("the checkpoint holds the state of ") :].split(",")[0] for line in lost] == [
        "EarlyStoppingHandler('val_loss')",
        "StoppingHandler#2",
        "WeightAveraging#2",
    ]
