"""multifit.utils.locks: a folder is one process's as long as that lives."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock, Timeout

from multifit import CheckpointHandler, MultiEstimator
from multifit.utils import locks
from multifit.utils.locks import LOCK, locked
from tests.common.full_disk import full_disk

HOLD = """
import sys
from pathlib import Path
from multifit.utils.locks import locked
with locked(Path(sys.argv[1]), print):
    print("locked", flush=True)
    sys.stdin.read()
"""


def refuse(warning: str) -> None:
    raise AssertionError(warning)


def test_a_second_process_is_refused_until_the_first_is_dead(tmp_path: Path) -> None:
    root = str(Path(__file__).parents[2])
    command, pipe = [sys.executable, "-c", HOLD, str(tmp_path)], subprocess.PIPE
    environment = {**os.environ, "PYTHONPATH": root}
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment) as holder:
        try:
            assert holder.stdout is not None and holder.stdout.readline() == b"locked\n"
            message = f"{tmp_path} is in use by another run.*give another folder"
            with pytest.raises(ValueError, match=message), locked(tmp_path, refuse):
                raise AssertionError
        finally:
            holder.kill()
    with locked(tmp_path, refuse):
        pass
    assert os.listdir(tmp_path) == []


def test_a_process_may_lock_a_folder_again(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    with locked(folder, refuse), locked(tmp_path / "a" / ".." / "a" / "b", refuse):
        assert (folder / LOCK).exists()
    with locked(folder, refuse):
        pass
    assert os.listdir(folder) == []


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # MXNet has threads, and handles it
def test_a_forked_worker_does_not_hold_the_lock(tmp_path: Path) -> None:
    """It may outlive its killed parent, and the run can be resumed at once."""
    (lives, ends), (begun, begins) = os.pipe(), os.pipe()
    with locked(tmp_path, refuse):
        worker = os.fork()
        if worker == 0:
            os.close(ends)
            os.write(begins, b".")
            os.read(lives, 1)
            os._exit(0)
        os.read(begun, 1)
        with pytest.raises(Timeout):
            FileLock(tmp_path / LOCK).acquire(timeout=0)
        locks._close_in_fork()  # as a kill does it; the worker has called it for itself
        with FileLock(tmp_path / LOCK, timeout=0):
            pass
    os.close(ends)
    os.waitpid(worker, 0)
    for descriptor in (lives, begun, begins):
        os.close(descriptor)


def test_a_fit_is_refused_while_another_process_writes_checkpoints(tmp_path: Path) -> None:
    mx = pytest.importorskip("mxnet")
    estimator = MultiEstimator(mx.gluon.nn.Dense(1), mx.gluon.loss.L2Loss())
    with FileLock(tmp_path / LOCK), pytest.raises(ValueError, match=f"{tmp_path} is in use by another run"):
        estimator.fit([(mx.nd.ones((2, 1)),) * 2], epochs=1, event_handlers=CheckpointHandler(tmp_path))
    assert estimator.state.step == 0


def test_without_locks_there_is_a_warning(tmp_path: Path, monkeypatch: Any) -> None:
    def unsupported(self: Any) -> None:
        raise NotImplementedError

    warnings: list[str] = []
    monkeypatch.setattr(FileLock, "acquire", unsupported)
    with locked(tmp_path, warnings.append):
        pass
    rest = "cannot be locked on this system: do not let two runs write there at a time"
    assert warnings == [f"{tmp_path} {rest}"]


def test_what_cannot_be_written_to_is_not_locked_and_hides_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with locked(tmp_path / "file", refuse):
        pass
    with pytest.raises(ZeroDivisionError), full_disk(), locked(tmp_path, refuse):
        raise ZeroDivisionError
    assert os.listdir(tmp_path) == ["file"]
