"""CheckpointHandler: when it saves, what it keeps, and what happens if the disk refuses."""

import errno
import os
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from multifit.checkpoints import newest_checkpoint, read_info, verify
from multifit.handlers import CheckpointHandler, StoppingHandler, ValidationHandler
from multifit.handlers.triggers import Every

from .conftest import At


def stop(step: int, event: str = "batch_end", priority: float = 0.0) -> At:
    return At(event, lambda estimator: True, step, priority)


def facts(folder: Path) -> list[tuple[int, int, int, bool, bool]]:
    """Return epoch, step, batch, complete, exact of the checkpoints of a run, by step; all must be intact."""
    infos = [read_info(path) for path in sorted((folder / "checkpoints").iterdir())]
    assert [verify(info) for info in infos] == [[]] * len(infos)
    for info in infos:
        assert info.path.name == f"epoch-{info.facts['epoch']:04d}-step-{info.facts['step']:08d}"
    names = ("epoch", "step", "batch", "complete", "exact")
    return [tuple(info.facts[name] for name in names) for info in infos]


# ---- when --------------------------------------------------------------------------------------------------


def interrupt(estimator: Any) -> None:
    estimator.state.stop("SIGINT", interrupted=True)


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
    "the planned end, with a schedule": (10, [StoppingHandler(2)], {}, [(2, 6, 3, True, True)], epochs(2)),
    # To take such an epoch for complete would skip the rest of its batches.
    "within an epoch": (None, [stop(5)], {}, [(2, 5, 2, False, False)], []),
    "within an epoch of unknown length": (None, [stop(5)], {"known": False}, [(2, 5, 2, False, False)], []),
    "within an epoch, with a schedule": (SELDOM, [stop(5)], {}, [(2, 5, 2, False, False)], epochs(2)),
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


@pytest.mark.parametrize(("every", "handlers", "options", "expected", "seeds"), WHEN.values(), ids=WHEN)
def test_when_checkpoints_are_saved(saved, tmp_path, log, every, handlers, options, expected, seeds) -> None:
    saved.fit(CheckpointHandler(tmp_path, every, keep_last=9), *handlers, **{"epochs": 9, **options})
    assert facts(tmp_path) == expected
    assert saved.reseeded == seeds
    assert (saved.state.seed is None) == (every is None)  # without a schedule, nothing is seeded
    _, _, batch, complete, exact = expected[-1]
    inexact = not complete and not exact and batch < 3
    assert log.text.count("is outside of any schedule") == inexact  # a planned end needs no warning


def test_a_checkpoint_within_an_epoch_is_from_before_its_end(saved: Any, tmp_path: Path) -> None:
    """The resumed run calls ``epoch_end`` again, and handlers would count the epoch twice."""
    ended: list[int] = []
    write = saved.write_checkpoint
    saved.write_checkpoint = lambda folder: (write(folder), saved.writes.append(list(ended)))
    count = At("epoch_end", lambda estimator: ended.append(estimator.state.step), priority=-9000.0)
    saved.fit(CheckpointHandler(tmp_path), count, stop(5, priority=5000.0), epochs=9)
    assert saved.writes == [5, [3]]


# ---- the monitored figure ----------------------------------------------------------------------------------


def improving(saved: Any, **values: list[float]) -> None:
    saved.validation = lambda state: {figure: column[state.epoch] for figure, column in values.items()}


def margin(figures: Any) -> float:
    return figures["val_acc"] - figures["val_loss"]


NAN, INFINITY = float("nan"), float("inf")
TWO = {"loss": [3, 2, 5, 4, 3], "acc": [0, 0, 0, 9, 9]}


@pytest.mark.parametrize(
    ("monitor", "mode", "values", "epochs"),
    [
        ("val_loss", None, {"loss": [3, 2, 2, 1, 5]}, [1, 2, 4]),
        ("val_acc", None, {"acc": [3, 2, 4, 4, 5]}, [1, 3, 5]),
        ("val_loss", "max", {"loss": [3, 2, 4, 4, 5]}, [1, 3, 5]),
        ("val_loss", None, {"loss": [NAN, 2, INFINITY, -INFINITY, 1]}, [2, 5]),
        ("val_unknown", None, {"unknown": [3, 2, 4, 1, 5]}, [1, 2, 4]),
        (["val_loss", "val_acc"], None, TWO, [1, 2, 4]),
        (margin, "max", TWO, [1, 2, 4, 5]),
    ],
)
def test_a_checkpoint_whenever_a_figure_improves(saved, tmp_path, monitor, mode, values, epochs) -> None:
    improving(saved, **values)
    handler = CheckpointHandler(tmp_path, monitor=monitor, mode=mode, keep_last=9)
    saved.fit(handler, ValidationHandler("data"), epochs=5, batches=1)
    assert [fact[0] for fact in facts(tmp_path)] == epochs
    if isinstance(monitor, str):
        (column,) = values.values()
        assert newest_checkpoint(tmp_path)[0].values == {monitor: column[epochs[-1] - 1]}


def test_an_incomplete_epoch_is_not_compared(saved: Any, tmp_path: Path) -> None:
    improving(saved, loss=[3, 1])
    handler = CheckpointHandler(tmp_path, monitor="val_loss")
    saved.fit(handler, ValidationHandler("data"), stop(5), epochs=5)
    assert handler.state_dict()["best"] == {"val_loss": 3} and newest_checkpoint(tmp_path)[0].values == {}


def test_the_best_value_is_restored_and_forgotten_by_another_fit(saved: Any, tmp_path: Path) -> None:
    improving(saved, loss=[3, 3, 5])
    handler = CheckpointHandler(tmp_path, monitor="val_loss", keep_last=9)
    state = {"best": {"val_loss": 2.0}, "every": "None"}
    resume = At("epoch_begin", lambda estimator: handler.load_state_dict(state))
    saved.fit(handler, ValidationHandler("data"), resume)
    assert not (tmp_path / "checkpoints").exists() and handler.state_dict() == state
    for saved.state.epoch in (1, 2):
        saved.fit(handler, ValidationHandler("data"), batches=1)
    assert len(facts(tmp_path)) == 2


# ---- what is kept, the seed, the schedule ------------------------------------------------------------------


def test_the_last_and_the_best_are_kept_also_those_of_an_interrupted_run(saved: Any, tmp_path: Path) -> None:
    improving(saved, loss=[3, 1, 2, 4, 5, 6, 7])
    for count in (5, 2):
        saved.fit(CheckpointHandler(tmp_path, 1, "val_loss"), ValidationHandler("data"), epochs=count)
    assert [fact[0] for fact in facts(tmp_path)] == [2, 6, 7]


def test_a_new_run_in_the_folder_of_another_logs_a_warning(saved: Any, tmp_path: Path, log: Any) -> None:
    saved.fit(CheckpointHandler(tmp_path, 1, keep_last=1), epochs=4)
    assert not log.records
    saved.state.step = saved.state.epoch = 0
    saved.fit(CheckpointHandler(tmp_path, 1, keep_last=1), epochs=2)
    (message,) = log.messages
    assert "up to step 12, and this run is at step 0" in message
    assert [fact[1] for fact in facts(tmp_path)] == [6]


def test_the_seed_is_the_states_or_the_handlers_or_drawn(saved: Any, tmp_path: Path) -> None:
    for seed in (7, 8):
        saved.fit(CheckpointHandler(tmp_path, 1, seed=seed))
        assert saved.state.seed == 7
    drawn = []
    for _ in range(2):
        np.random.seed(3)
        saved.state.seed = None
        saved.fit(CheckpointHandler(tmp_path, 1))
        drawn.append(saved.state.seed)
    assert drawn[0] == drawn[1] and isinstance(drawn[0], int)


@pytest.mark.parametrize(("saved_every", "warnings"), [('Every(2, "batch")', 0), ("None", 1)])
def test_another_schedule_after_a_resume_logs_a_warning(saved, tmp_path, log, saved_every, warnings) -> None:
    handler, state = CheckpointHandler(tmp_path, OFTEN), {"best": {}, "every": saved_every}
    resume = At("epoch_begin", lambda estimator: handler.load_state_dict(state), priority=-9000.0)
    saved.fit(handler, resume, epochs=1)
    assert log.text.count("the run was started with every=") == warnings


# ---- a disk that refuses -----------------------------------------------------------------------------------


def failing(saved: Any, *codes: int | None) -> None:
    """Let the checkpoints fail with these codes, one after the other; None and all others succeed."""
    write, left = saved.write_checkpoint, iter(codes)

    def fails(folder: Path) -> None:
        write(folder)
        code = next(left, None)
        if code is not None:
            raise OSError(code, os.strerror(code), folder / "net.params")

    saved.write_checkpoint = fails


KEPT = "training continues, and files written earlier are kept"


def test_a_full_disk_and_a_recovery_are_logged_once(saved: Any, tmp_path: Path, log: Any) -> None:
    failing(saved, None, errno.ENOSPC, errno.ENOSPC, errno.EIO)
    saved.fit(CheckpointHandler(tmp_path, 1, keep_last=2), epochs=5)
    assert [fact[0] for fact in facts(tmp_path)] == [1, 5] and saved.state.epoch == 5
    second, fourth, fifth = (tmp_path / f"checkpoints/epoch-000{i}-step-{3 * i:08}" for i in (2, 4, 5))
    expected = [
        ("ERROR", f"checkpoint {second} could not be written: No space left on device; {KEPT}"),
        ("ERROR", f"checkpoint {fourth} could not be written: Input/output error; {KEPT}"),
        ("WARNING", f"checkpoints are written again: {fifth}"),
    ]
    assert [(record.levelname, record.getMessage()) for record in log.records] == expected
    saved.fit(CheckpointHandler(tmp_path, 1, keep_last=2), epochs=2)
    assert len(log.records) == 3


def test_old_checkpoints_that_cannot_be_deleted(saved, tmp_path, log, monkeypatch) -> None:
    handler = CheckpointHandler(tmp_path, 1, keep_last=1)
    refusal = MagicMock(side_effect=PermissionError(errno.EACCES, os.strerror(errno.EACCES)))
    with monkeypatch.context() as patch:
        patch.setattr("multifit.checkpoints.remove_checkpoint", refusal)
        saved.fit(handler, epochs=3)
    assert len(facts(tmp_path)) == 3
    saved.fit(handler)
    assert len(facts(tmp_path)) == 1
    folder = tmp_path / "checkpoints"
    assert log.messages == [
        f"old checkpoints in {folder} could not be deleted: Permission denied; {KEPT}",
        f"checkpoints are written again: {folder / 'epoch-0004-step-00000012'}",
    ]


def test_a_folder_that_can_never_be_written_is_refused_before_training(saved, tmp_path, monkeypatch) -> None:
    (tmp_path / "file").touch()
    message = r"(?s)no checkpoint can .*/file is not a folder.*CheckpointHandler.train_begin"
    with pytest.raises(OSError, match=message):
        saved.fit(CheckpointHandler(tmp_path / "file" / "run", 1), epochs=1)
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(OSError, match=rf"as {tmp_path} cannot be written; give another folder"):
        saved.fit(CheckpointHandler(tmp_path / "new" / "run", 1), epochs=1)
    assert saved.state.step == 0 and os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize(
    ("every", "step", "expected"), [(OFTEN, 2, (1, 2, 2, False, False)), (None, 3, (1, 3, 3, True, False))]
)
def test_a_failed_checkpoint_at_a_stop_is_tried_again(saved, tmp_path, every, step, expected) -> None:
    """Where it was due within an epoch, after the other handlers; and at the epoch's end."""
    failing(saved, errno.ENOSPC)
    saved.fit(CheckpointHandler(tmp_path, every), stop(step), epochs=9)
    assert facts(tmp_path) == [expected]


def test_a_full_disk_does_not_change_the_seeding_and_other_errors_are_raised(saved, tmp_path) -> None:
    failing(saved, *[errno.ENOSPC] * 3)
    saved.fit(CheckpointHandler(tmp_path, OFTEN), epochs=2)
    assert saved.reseeded == ["epoch 0", 2, "epoch 1", 4, 6] and facts(tmp_path) == []
    error = RuntimeError("an operation failed long before")
    saved.write_checkpoint = MagicMock(side_effect=error)
    with pytest.raises(RuntimeError) as caught:
        saved.fit(CheckpointHandler(tmp_path, 1))
    assert caught.value is error and facts(tmp_path) == []
