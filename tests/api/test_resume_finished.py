"""A run that is finished ends again as it did when it is resumed, and can be extended."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from multifit import EarlyStoppingHandler, Every
from multifit.handlers import StoppingHandler, WeightAveraging

from .resume_runs import EPOCHS, STEPS, At, Run, end_without_stop, unequal

ALL = {"epochs": EPOCHS}


# how far a run was trained before, how far then, what the log says and why it stopped
@pytest.mark.parametrize(
    ("first", "then", "line", "reason"),
    [
        ({"batches": 8}, {"batches": STEPS}, "resuming from epoch-0002-step-00000008", f"{STEPS} batches"),
        ({"epochs": 1}, ALL, "resuming from epoch-0001-step-00000005: epoch 2", "2 epochs"),
        (ALL, ALL, "the run had finished: 2 epochs", "2 epochs"),
        (None, ALL, "no checkpoint in", "2 epochs"),
    ],
    ids=["batches", "epochs", "finished", "from scratch"],
)
def test_a_run_can_be_extended(tmp_path, log, first, then, line, reason):
    run = Run(tmp_path / "run")
    if first is not None:
        run.fit(**first)
    run.resume(*([At(STEPS, "batch_begin")] if first == then else []), **then)
    assert unequal(run.end(), {**end_without_stop(run), "reason": reason}) == []
    assert any(logged.startswith(line) for logged in log())


EVERY = Every(1, "epoch"), Every(3, "batch")
CUTS = None, "evaluate_batch_end", "train_end"  # where a run was cut off after its last batch, if it was
# the last batch, the limits, and the handlers that stop a run before them
STOPS: dict[str, tuple[int, dict[str, int], Callable[[], list[Any]]]] = {
    "batches": (8, {"batches": 8}, list),
    "batches of whole epochs": (STEPS, {"batches": STEPS}, list),
    "a handler of ours": (8, {"epochs": 3}, lambda: [StoppingHandler(max_batch=8)]),
    "any handler": (8, {"epochs": 3}, lambda: [At(8, priority=0.0, action=lambda: True)]),
}
# each cut with both schedules, and each stop
PAIRS = [(EVERY[i % 2], CUTS[i % 3], stop) for i, stop in enumerate([*STOPS, *STOPS][:6])]


@pytest.mark.parametrize(("every", "cut", "stop"), PAIRS, ids=str)
def test_a_run_that_is_finished_ends_again_as_it_did(tmp_path, every, cut, stop):
    """The last epoch is not a whole one; what of its end was cut off is made up for."""
    step, limits, stops = STOPS[stop]

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


def saved_checkpoints(run: Run) -> list[tuple[str, int]]:
    """Return the checkpoints and when they were written."""
    return sorted((path.name, path.stat().st_mtime_ns) for path in (run.folder / "checkpoints").iterdir())


def test_a_run_that_a_handler_stopped_goes_on_only_if_it_is_extended(tmp_path: Path, caplog: Any) -> None:
    class Stops:
        def epoch_end(self, estimator: Any) -> bool:
            return True

    run = Run(tmp_path / "run")
    run.fit(Stops(), epochs=3)
    run.resume(epochs=3)
    assert run.estimator.state.epoch == 1
    (warning,) = (record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    assert warning == (
        "the run had finished: Stops; nothing is trained: to go on, resume with more than epochs=3"
    )
    run.resume(epochs=4)
    assert run.estimator.state.epoch == 4
