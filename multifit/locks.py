"""A lock, so that only one process at a time writes to a folder."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Callable

fcntl: Any = None
with suppress(ImportError):  # Windows
    import fcntl

LOCK = ".lock"
_locked: set[tuple[int, Path]] = set()  # the folders that this process (a forked one is another) has locked


@contextmanager
def locked(folder: Path, warn: Callable[[str], None]) -> Iterator[None]:
    """Lock a folder for this process, and create it if needed; within the block, it can be locked again.

    The lock is the operating system's (POSIX ``lockf``): it ends with its process, however that ends, and
    forked workers do not inherit it. Where there are no such locks, `warn` is called with a message. A folder
    that cannot be written to is not locked. Raises ValueError if another process has locked it.
    """
    real = Path(os.path.realpath(folder))
    key = os.getpid(), real
    file = None if key in _locked else _acquire(real / LOCK, folder, warn)
    if file is None:
        yield
        return
    _locked.add(key)
    try:
        yield
    finally:
        _locked.discard(key)
        with suppress(OSError):
            (real / LOCK).unlink()
        file.close()


def _acquire(path: Path, folder: Path, warn: Callable[[str], None]) -> IO[bytes] | None:
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("ab+", buffering=0)  # else closing it would try again what a full disk refused
        except OSError:  # the next write to the folder says why
            return None
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (AttributeError, OSError) as error:
            with file:
                if getattr(error, "errno", None) in (errno.EACCES, errno.EAGAIN):
                    raise ValueError(_in_use(folder, file)) from None
            warn(f"{folder} cannot be locked on this system: do not let two runs write there at a time")
            return None
        if _is_at(path, file):
            holder = f"process {os.getpid()} on {socket.gethostname()}"
            with suppress(OSError):
                file.truncate(0)
                file.write(f"{holder}, since {time.strftime('%Y-%m-%d %H:%M:%S')}".encode())
            return file
        file.close()  # the process that had the lock removed the file meanwhile


def _is_at(path: Path, file: IO[bytes]) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.stat(path), os.fstat(file.fileno()))
    return False


def _in_use(folder: Path, file: IO[bytes]) -> str:
    file.seek(0)
    holder = file.read(200).decode("utf-8", "replace").strip() or "another process"
    return (
        f"{folder} is in use by another run ({holder}), and the checkpoints of two runs would mix: "
        "wait until that one ends, end it, or give another folder"
    )
