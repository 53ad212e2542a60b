"""CheckpointHandler when a checkpoint cannot be written or deleted."""

import errno
import os
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from multifit.handlers import CheckpointHandler
from multifit.handlers.triggers import Every

from .saved_runs import facts, stop

import mxnet as mx  # isort: skip


def failing(saved: Any, *codes: int | None) -> None:
    """Let the checkpoints fail with these codes, one after the other; None and all others succeed."""
    write, left = saved.write_checkpoint, iter(codes)

    def fails(folder: Path) -> None:
        write(folder)
        code = next(left, None)
        if code is not None:
            raise OSError(code, os.strerror(code), folder / "net.params")

    saved.write_checkpoint = fails


def test_a_full_disk_and_a_recovery_are_logged_once(saved: Any, tmp_path: Path, log: Any) -> None:
    failing(saved, None, errno.ENOSPC, errno.ENOSPC, errno.EIO)
    saved.fit(CheckpointHandler(tmp_path, 1, keep_last=2), epochs=5)
    assert [fact[0] for fact in facts(tmp_path)] == [1, 5] and saved.state.epoch == 5
    assert [record.levelname for record in log.records] == ["ERROR", "ERROR", "WARNING"]
    folder = tmp_path / "checkpoints"
    assert log.records[0].getMessage() == (
        f"checkpoint {folder / 'epoch-0002-step-00000006'} could not be written: No space left on device; "
        "training continues, and files written earlier are kept"
    )
    assert "Input/output error" in log.records[1].getMessage()
    again = folder / "epoch-0005-step-00000015"
    assert log.records[2].getMessage() == f"checkpoints are written again: {again}"
    saved.fit(CheckpointHandler(tmp_path, 1, keep_last=2), epochs=2)
    assert len(log.records) == 3


def test_a_folder_that_can_never_be_written_is_refused_before_training(
    saved: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        OSError, match=r"(?s)no checkpoint can .*/file is not a folder.*CheckpointHandler.train_begin"
    ):
        saved.fit(CheckpointHandler(tmp_path / "file" / "run", 1), epochs=1)
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(OSError, match=rf"as {tmp_path} cannot be written; give another folder"):
        saved.fit(CheckpointHandler(tmp_path / "new" / "run", 1), epochs=1)
    assert saved.state.step == 0 and os.listdir(tmp_path) == ["file"]


def test_a_failed_checkpoint_at_a_stop_is_tried_again(saved: Any, tmp_path: Path) -> None:
    """Where it was due within an epoch, after the other handlers; and at the epoch's end."""
    for every, step, expected in (
        (Every(2, "batch"), 2, (1, 2, 2, False, False)),
        (None, 3, (1, 3, 3, True, False)),
    ):
        folder, saved.state.step = tmp_path / str(step), 0
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(saved, "write_checkpoint", saved.write_checkpoint)
            failing(saved, errno.ENOSPC)
            saved.fit(CheckpointHandler(folder, every), stop(step), epochs=9)
        assert facts(folder) == [expected]


def test_a_full_disk_does_not_change_the_seeding(saved: Any, tmp_path: Path) -> None:
    failing(saved, *[errno.ENOSPC] * 3)
    saved.fit(CheckpointHandler(tmp_path, Every(2, "batch")), epochs=2)
    assert saved.reseeded == ["epoch 0", 2, "epoch 1", 4, 6] and facts(tmp_path) == []


def test_other_errors_are_raised(saved: Any, tmp_path: Path) -> None:
    error = mx.MXNetError("an operation failed long before")
    saved.write_checkpoint = MagicMock(side_effect=error)
    with pytest.raises(mx.MXNetError) as caught:
        saved.fit(CheckpointHandler(tmp_path, 1))
    assert caught.value is error and facts(tmp_path) == []


def test_old_checkpoints_that_cannot_be_deleted(
    saved: Any, tmp_path: Path, log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        f"old checkpoints in {folder} could not be deleted: Permission denied; "
        "training continues, and files written earlier are kept",
        f"checkpoints are written again: {folder / 'epoch-0004-step-00000012'}",
    ]
