"""CheckpointHandler."""

from __future__ import annotations

import errno
import json
import os
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multifit
from multifit.checkpoints import newest_checkpoint, read_manifest, verify
from multifit.handlers import CheckpointHandler, InterruptHandler, StoppingHandler, ValidationHandler
from multifit.triggers import Every

from .conftest import At

import mxnet as mx  # isort: skip


def stop(step: int, event: str = "batch_end", priority: float = 0.0) -> At:
    return At(event, lambda estimator: True, step, priority)


@pytest.fixture
def saved(run: Any) -> Any:
    """Return a run that writes its step to a file, and lists in `writes` and `reseeded` what was called."""

    def write(folder: Path) -> None:
        run.writes.append(run.state.step)
        (folder / "run.json").write_text(json.dumps({"step": run.state.step}))

    run.write_checkpoint, run.writes, run.reseeded = write, [], []
    run.reseed = lambda: run.reseeded.append(run.state.step)
    run.reseed_epoch = lambda: run.reseeded.append(f"epoch {run.state.epoch}")
    return run


def facts(folder: Path) -> list[tuple[int, int, int, bool, bool]]:
    """Return epoch, step, batch, complete, exact of the checkpoints of a run, by step; all must be intact."""
    paths = sorted((folder / "checkpoints").iterdir())
    assert [verify(path) for path in paths] == [[]] * len(paths)
    facts = [(path.name, read_manifest(path).facts) for path in paths]
    for name, fact in facts:
        assert name == f"epoch-{fact['epoch']:04d}-step-{fact['step']:08d}"
    return [tuple(fact[key] for key in ("epoch", "step", "batch", "complete", "exact")) for _, fact in facts]


# ---- when --------------------------------------------------------------------------------------------------


def interrupt(estimator: Any) -> None:
    estimator.state.interrupted = True
    estimator.state.stop("SIGINT")


def epochs(count: int) -> list[str]:
    return [f"epoch {epoch}" for epoch in range(count)]


OFTEN, SELDOM = Every(2, "batch"), Every(50, "batch")
# An epoch has three batches. Facts: epoch, step, batch, whether the epoch is complete, whether it is exact.
WHEN = {
    "every second epoch": (2, [], {"epochs": 5}, [(2, 6, 3, True, True), (4, 12, 3, True, True)], epochs(5)),
    "every second batch": (
        OFTEN, [], {"epochs": 2}, [(1, 2, 2, False, True), (2, 4, 1, False, True), (2, 6, 3, False, True)],
        ["epoch 0", 2, "epoch 1", 4, 6],
    ),
    "the planned end": (None, [StoppingHandler(2)], {}, [(2, 6, 3, True, False)], []),
    "the planned end, with a schedule": (10, [StoppingHandler(2)], {}, [(2, 6, 3, True, True)], epochs(2)),
    # To take such an epoch for complete would skip the rest of its batches.
    "within an epoch": (None, [stop(5)], {}, [(2, 5, 2, False, False)], []),
    "within an epoch of unknown length": (None, [stop(5)], {"known": False}, [(2, 5, 2, False, False)], []),
    "within an epoch, with a schedule": (SELDOM, [stop(5)], {}, [(2, 5, 2, False, False)], epochs(2)),
    "within an epoch of unknown length, with a schedule": (
        SELDOM, [stop(5)], {"known": False}, [(2, 5, 2, False, False)], epochs(2),
    ),
    "where a checkpoint is due": (
        Every(5, "batch"), [stop(5)], {}, [(2, 5, 2, False, True)], ["epoch 0", "epoch 1", 5],
    ),
    "at an epoch's last batch": (None, [stop(3)], {}, [(1, 3, 3, True, False)], []),
    "at an epoch's last batch, with a schedule": (1, [stop(3)], {}, [(1, 3, 3, True, True)], epochs(1)),
    "by a later handler": (None, [stop(5, priority=5000.0)], {}, [(2, 5, 2, False, False)], []),
    "at an epoch's end": (SELDOM, [stop(6, "epoch_end")], {}, [(2, 6, 3, True, True)], epochs(2)),
    # No validation is run then: a complete checkpoint would never have its figures.
    "by an interrupt at the last batch": (
        None, [At("batch_end", interrupt, 3)], {}, [(1, 3, 3, False, False)], [],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("every", "handlers", "options", "expected", "reseeded"), WHEN.values(), ids=WHEN)
def test_when_checkpoints_are_saved(
    saved: Any,
    tmp_path: Path,
    log: Any,
    every: Any,
    handlers: Any,
    options: Any,
    expected: Any,
    reseeded: Any,
) -> None:
    saved.fit(CheckpointHandler(tmp_path, every, keep_last=9), *handlers, **{"epochs": 9, **options})
    assert facts(tmp_path) == expected
    assert saved.reseeded == reseeded
    assert (saved.state.seed is None) == (every is None)  # without a schedule, nothing is seeded
    _, _, batch, complete, exact = expected[-1]
    inexact = not complete and not exact and batch < 3
    assert log.text.count("is outside of any schedule") == inexact  # a planned end needs no warning


def test_a_stop_at_the_last_batch_of_an_epoch_is_saved_at_once_and_at_its_end(
    saved: Any, tmp_path: Path
) -> None:
    saved.fit(CheckpointHandler(tmp_path), stop(3), epochs=9)
    assert saved.writes == [3, 3]


def test_a_signal_during_the_validation(saved: Any, tmp_path: Path) -> None:
    """The validation of other handlers may have been skipped."""

    def interrupted(state: Any) -> dict[str, float]:
        state.interrupted = state.step == 6
        return {"loss": 1.0}

    saved.validation = interrupted
    saved.fit(CheckpointHandler(tmp_path, SELDOM), InterruptHandler(), ValidationHandler("data"), epochs=9)
    assert facts(tmp_path) == [(2, 6, 3, False, True)]


# ---- the monitored figure ----------------------------------------------------------------------------------


def improving(saved: Any, values: list[float], figure: str = "loss") -> None:
    saved.validation = lambda state: {figure: values[state.epoch]}


@pytest.mark.parametrize(
    ("figure", "mode", "values", "epochs"),
    [
        ("loss", None, [3, 2, 2, 1, 5], [1, 2, 4]),
        ("acc", None, [3, 2, 4, 4, 5], [1, 3, 5]),
        ("loss", "max", [3, 2, 4, 4, 5], [1, 3, 5]),
        ("loss", None, [float("nan"), 2, float("inf"), float("-inf"), 1], [2, 5]),
        ("unknown", None, [3, 2, 4, 1, 5], [1, 2, 4]),
    ],
)
def test_a_checkpoint_whenever_the_figure_improves(
    saved: Any, tmp_path: Path, figure: str, mode: str | None, values: list[float], epochs: list[int]
) -> None:
    improving(saved, values, figure)
    handler = CheckpointHandler(tmp_path, monitor=f"val_{figure}", mode=mode, keep_last=9)
    saved.fit(handler, ValidationHandler("data"), epochs=5, batches=1)
    assert [fact[0] for fact in facts(tmp_path)] == epochs
    newest, _ = newest_checkpoint(tmp_path)
    assert newest is not None
    assert read_manifest(newest).facts["values"] == {f"val_{figure}": values[epochs[-1] - 1]}


@pytest.mark.parametrize(
    ("monitor", "mode", "epochs"),
    [
        (["val_loss", "val_acc"], None, [1, 2, 4]),
        (lambda figures: figures["val_acc"] - figures["val_loss"], "max", [1, 2, 4, 5]),
    ],
    ids=["several figures", "a function of the figures"],
)
def test_a_checkpoint_whenever_one_of_several_improves(
    saved: Any, tmp_path: Path, monitor: Any, mode: str | None, epochs: list[int]
) -> None:
    values = [(3, 0), (2, 0), (5, 0), (4, 9), (3, 9)]
    saved.validation = lambda state: dict(zip(["loss", "acc"], values[state.epoch]))
    handler = CheckpointHandler(tmp_path, monitor=monitor, mode=mode, keep_last=9)
    saved.fit(handler, ValidationHandler("data"), epochs=5, batches=1)
    assert [fact[0] for fact in facts(tmp_path)] == epochs


def test_an_incomplete_epoch_is_not_compared(saved: Any, tmp_path: Path) -> None:
    improving(saved, [3, 1])
    handler = CheckpointHandler(tmp_path, monitor="val_loss")
    saved.fit(handler, ValidationHandler("data"), stop(5), epochs=5)
    assert handler.state_dict()["best"] == {"val_loss": 3}
    newest, _ = newest_checkpoint(tmp_path)
    assert newest is not None
    assert read_manifest(newest).facts["values"] == {}


@pytest.mark.parametrize("best", [{"val_loss": 2.0}, 2.0], ids=["now", "when one figure was monitored"])
def test_the_best_value_is_restored(saved: Any, tmp_path: Path, best: Any) -> None:
    improving(saved, [3])
    handler = CheckpointHandler(tmp_path, monitor="val_loss")
    state = {"best": best, "every": "None"}
    resume = At("epoch_begin", lambda estimator: handler.load_state_dict(state))
    saved.fit(handler, ValidationHandler("data"), resume)
    assert not (tmp_path / "checkpoints").exists()
    assert handler.state_dict() == {"best": {"val_loss": 2.0}, "every": "None"}


def test_each_fit_starts_a_new_comparison(saved: Any, tmp_path: Path) -> None:
    improving(saved, [1, 1, 5])
    handler = CheckpointHandler(tmp_path, monitor="val_loss", keep_last=9)
    assert handler.state_dict()["best"] == {}
    for _ in range(2):
        saved.fit(handler, ValidationHandler("data"), batches=1)
    saved.state.epoch = 2
    saved.fit(handler, ValidationHandler("data"), batches=1)
    assert len(facts(tmp_path)) == 3


# ---- the seed ----------------------------------------------------------------------------------------------


def test_the_seed_is_the_states_or_the_handlers_or_drawn(saved: Any, tmp_path: Path) -> None:
    saved.fit(CheckpointHandler(tmp_path, 1, seed=7))
    assert saved.state.seed == 7
    saved.fit(CheckpointHandler(tmp_path, 1, seed=8))
    assert saved.state.seed == 7
    drawn = set()
    for _ in range(2):
        np.random.seed(3)
        saved.state.seed = None
        saved.fit(CheckpointHandler(tmp_path, 1))
        drawn.add(saved.state.seed)
    assert len(drawn) == 1
    assert isinstance(drawn.pop(), int)


# ---- what is kept ------------------------------------------------------------------------------------------


def test_the_last_and_the_best_are_kept(saved: Any, tmp_path: Path) -> None:
    improving(saved, [3, 1, 2, 4, 5])
    saved.fit(CheckpointHandler(tmp_path, 1, "val_loss"), ValidationHandler("data"), epochs=5)
    assert [fact[0] for fact in facts(tmp_path)] == [2, 4, 5]


def test_checkpoints_of_an_interrupted_run_count(saved: Any, tmp_path: Path) -> None:
    for _ in range(3):
        saved.fit(CheckpointHandler(tmp_path, 1), epochs=2)
        saved.state.epoch += 1
    assert [fact[1] for fact in facts(tmp_path)] == [15, 18]


def test_a_new_run_in_the_folder_of_another_logs_a_warning(saved: Any, tmp_path: Path, log: Any) -> None:
    saved.fit(CheckpointHandler(tmp_path, 1, keep_last=1), epochs=4)
    assert not log.records
    saved.state.step = saved.state.epoch = 0
    saved.fit(CheckpointHandler(tmp_path, 1, keep_last=1), epochs=2)
    assert "up to step 12, and this run is at step 0" in log.text
    assert len(log.records) == 1
    assert [fact[1] for fact in facts(tmp_path)] == [6]


# ---- when it cannot be written -----------------------------------------------------------------------------


def test_a_full_disk_is_logged_once_and_the_training_continues(saved: Any, tmp_path: Path, log: Any) -> None:
    write = saved.write_checkpoint

    def full(folder: Path) -> None:
        write(folder)
        if saved.state.epoch in (1, 2):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), folder / "net.params")
        if saved.state.epoch == 3:
            raise OSError(errno.EIO, os.strerror(errno.EIO), folder / "net.params")

    saved.write_checkpoint = full
    saved.fit(CheckpointHandler(tmp_path, 1, keep_last=2), epochs=4)
    assert [fact[0] for fact in facts(tmp_path)] == [1]
    assert saved.state.epoch == 4
    first, second = [record.getMessage() for record in log.records]
    path = tmp_path / "checkpoints" / "epoch-0002-step-00000006"
    assert first == (
        f"checkpoint {path} could not be written: No space left on device; "
        "the training goes on, and files written before stay"
    )
    assert "Input/output error" in second
    saved.fit(CheckpointHandler(tmp_path, 1, keep_last=2), epochs=2)
    assert len(log.records) == 2


def test_a_recovery_is_logged(saved: Any, tmp_path: Path, log: Any) -> None:
    def write(folder: Path) -> None:
        (folder / "x").touch()
        if saved.state.epoch == 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    saved.write_checkpoint = write
    saved.fit(CheckpointHandler(tmp_path, 1), epochs=4)
    assert [record.levelname for record in log.records] == ["ERROR", "WARNING"]
    path = tmp_path / "checkpoints" / "epoch-0003-step-00000009"
    assert log.records[1].getMessage() == f"checkpoints are written again: {path}"


def test_a_full_disk_does_not_change_the_seeding(saved: Any, tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("in the way")
    saved.fit(CheckpointHandler(tmp_path, Every(2, "batch")), epochs=2)
    assert saved.reseeded == ["epoch 0", 2, "epoch 1", 4, 6]
    assert (tmp_path / "checkpoints").read_text() == "in the way"


def test_mxnets_own_error_for_a_full_disk(saved: Any, tmp_path: Path, log: Any) -> None:
    """A limit on the size of files is what a full disk is: MXNet fails in the middle of its file."""
    array = mx.nd.ones((1000, 100))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def write(folder: Path) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
        try:
            mx.nd.save(str(folder / "net.params"), array)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    saved.write_checkpoint = write
    saved.fit(CheckpointHandler(tmp_path, 1), epochs=2)
    (record,) = log.records
    assert "could not be written: FileStream.Write incomplete; the training goes on" in record.getMessage()
    assert facts(tmp_path) == []


@pytest.mark.parametrize("error", [ValueError("no"), mx.MXNetError("an operation failed long before")])
def test_other_errors_are_raised(saved: Any, tmp_path: Path, error: Exception) -> None:
    def write(folder: Path) -> None:
        raise error

    saved.write_checkpoint = write
    with pytest.raises(multifit.events.HandlerError) as caught:
        saved.fit(CheckpointHandler(tmp_path, 1))
    assert caught.value.__cause__ is error
    assert facts(tmp_path) == []


def test_a_failed_checkpoint_at_a_stop_is_tried_again(saved: Any, tmp_path: Path) -> None:
    tries = iter([OSError(errno.ENOSPC, "full"), None])

    def write(folder: Path) -> None:
        (folder / "x").touch()
        error = next(tries)
        if error:
            raise error

    saved.write_checkpoint = write
    saved.fit(CheckpointHandler(tmp_path), stop(2), epochs=9)
    assert facts(tmp_path) == [(1, 2, 2, False, False)]


def test_old_checkpoints_that_cannot_be_deleted(
    saved: Any, tmp_path: Path, log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    handler = CheckpointHandler(tmp_path, 1, keep_last=1)
    with monkeypatch.context() as patch:
        patch.setattr("multifit.checkpoints.store.remove_checkpoint", refuse)
        saved.fit(handler, epochs=3)
    assert len(facts(tmp_path)) == 3
    folder = tmp_path / "checkpoints"
    assert log.records[0].getMessage() == (
        f"old checkpoints in {folder} could not be deleted: Permission denied; "
        "the training goes on, and files written before stay"
    )
    assert len(log.records) == 1
    saved.fit(handler)
    assert len(facts(tmp_path)) == 1
    assert log.records[1].getMessage() == f"old checkpoints are deleted again: {folder}"
    assert len(log.records) == 2


# ---- arguments ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("saved_every", "warnings"), [('Every(2, "batch")', 0), ("None", 1), ('Every(2, "epoch")', 1)]
)
def test_another_schedule_after_a_resume_logs_a_warning(
    saved: Any, tmp_path: Path, log: Any, saved_every: str, warnings: int
) -> None:
    handler = CheckpointHandler(tmp_path, OFTEN)
    state = {"best": None, "every": saved_every}
    resume = At("epoch_begin", lambda estimator: handler.load_state_dict(state), priority=-9000.0)
    saved.fit(handler, resume, epochs=1)
    assert log.text.count("the run was started with every=") == warnings
