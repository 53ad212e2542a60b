"""multifit.locks: a folder is one process's as long as that lives."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from multifit import CheckpointHandler, MultiEstimator, locks
from multifit.gluon.compat import mx
from multifit.locks import LOCK, locked
from tests.common.full_disk import full_disk

HOLD = """
import sys
from pathlib import Path
from multifit.locks import locked
with locked(Path(sys.argv[1]), print):
    print("locked", flush=True)
    sys.stdin.read()
"""


def refuse(warning: str) -> None:
    raise AssertionError(warning)


def test_a_second_process_is_refused_until_the_first_is_dead(tmp_path: Path) -> None:
    root = str(Path(__file__).parents[1])
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": root}
    ) as holder:
        try:
            assert holder.stdout is not None and holder.stdout.readline() == b"locked\n"
            with (
                pytest.raises(ValueError, match="is in use by another run") as error,
                locked(tmp_path, refuse),
            ):
                raise AssertionError
        finally:
            holder.kill()
    for part in (str(tmp_path), f"process {holder.pid} on ", ", since 20", "give another folder"):
        assert part in str(error.value)
    with locked(tmp_path, refuse):
        assert f"process {os.getpid()} " in (tmp_path / LOCK).read_text()
    assert os.listdir(tmp_path) == []


def test_a_process_may_lock_a_folder_again(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    with locked(folder, refuse), locked(tmp_path / "a" / ".." / "a" / "b", refuse):
        assert (folder / LOCK).exists()
    with locked(folder, refuse):
        pass
    assert os.listdir(folder) == []


def test_a_lock_that_its_last_holder_removed_meanwhile_is_not_taken(tmp_path: Path, monkeypatch: Any) -> None:
    taken: list[Any] = []

    def lockf(file: Any, how: int) -> None:
        taken.append(file)
        if len(taken) == 1:
            (tmp_path / LOCK).unlink()

    monkeypatch.setattr(locks.fcntl, "lockf", lockf)
    with locked(tmp_path, refuse):
        assert len(taken) == 2 and taken[0].closed and not taken[1].closed


def test_a_fit_is_refused_while_another_process_writes_checkpoints(tmp_path: Path, monkeypatch: Any) -> None:
    def taken(*_: Any) -> None:
        raise BlockingIOError(errno.EAGAIN, "locked")

    monkeypatch.setattr(locks.fcntl, "lockf", taken)
    estimator = MultiEstimator(mx.gluon.nn.Dense(1), mx.gluon.loss.L2Loss())
    with pytest.raises(ValueError, match=re.escape(f"{tmp_path} is in use by another run (another process")):
        estimator.fit([(mx.nd.ones((2, 1)),) * 2], epochs=1, event_handlers=CheckpointHandler(tmp_path))
    assert estimator.state.step == 0


def unsupported(*_: Any) -> None:
    raise OSError(errno.ENOLCK, "no locks")


def test_without_locks_there_is_a_warning(tmp_path: Path, monkeypatch: Any) -> None:
    warnings: list[str] = []
    monkeypatch.setattr(locks.fcntl, "lockf", unsupported)
    with locked(tmp_path, warnings.append):
        pass
    monkeypatch.setattr(locks, "fcntl", None)  # as on Windows
    with locked(tmp_path, warnings.append):
        pass
    text = f"{tmp_path} cannot be locked on this system: do not let two runs write there at a time"
    assert warnings == [text] * 2


def test_a_folder_that_cannot_be_written_to_is_not_locked(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with locked(tmp_path / "file", refuse):
        pass


def test_a_full_disk_neither_refuses_the_lock_nor_hides_an_error(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), full_disk(), locked(tmp_path, refuse):
        raise ZeroDivisionError
    assert os.listdir(tmp_path) == []
