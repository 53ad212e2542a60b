"""A lock, so that only one process at a time writes to a folder."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

LOCK = ".lock"
_held: dict[Path, FileLock] = {}  # of this process


@contextmanager
def locked(folder: Path, warn: Callable[[str], None]) -> Iterator[None]:
    """Lock a folder for this process, and create it if needed; within the block, it can be locked again.

    The lock is the operating system's: it ends with its process, however that ends. Where there are no such
    locks, `warn` is called with a message. A folder that cannot be written to is not locked. Raises
    ValueError if another process has locked it.
    """
    real = Path(os.path.realpath(folder))
    try:
        lock = None if real in _held else FileLock(real / LOCK, timeout=0, thread_local=False)
        if lock is not None:
            lock.acquire()
            _held[real] = lock
    except Timeout:
        raise ValueError(
            f"{folder} is in use by another run, and the checkpoints of two runs would mix: wait until that "
            "one ends, end it, or give another folder"
        ) from None
    except NotImplementedError:
        lock = None
        warn(f"{folder} cannot be locked on this system: do not let two runs write there at a time")
    except OSError:  # the next write to the folder says why
        lock = None
    try:
        yield
    finally:
        if lock is not None:
            with suppress(OSError):
                (real / LOCK).unlink()
            _held.pop(real).release()


def _close_in_fork() -> None:
    """Close the locks in a forked worker: it may outlive its killed parent, and would hold them as long."""
    for lock in _held.values():
        file, lock._context.lock_file_fd = lock._context.lock_file_fd, None
        if file is not None:
            os.close(file)  # releasing would release the parent's


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_close_in_fork)
