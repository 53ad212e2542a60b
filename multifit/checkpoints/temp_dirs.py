"""Temporary folders, in which checkpoints are written and from which they are removed.

Under its final name, a checkpoint is always complete: its folder is filled under a temporary name, and gets a
temporary name again before it is removed or replaced. A temporary name holds the machine and the process,
which shows whether a process is still working in the folder.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import socket
from pathlib import Path

import psutil

from .manifest import MANIFEST

_PATTERN = re.compile(r"\.checkpoint-([0-9a-f]{8})-([0-9]+)-[0-9a-f]{16}")


def temp_name() -> str:
    """Return a new temporary name for this process."""
    return f".checkpoint-{_machine()}-{os.getpid()}-{secrets.token_hex(8)}"


def is_temp_name(name: str) -> bool:
    """Whether `temp_name` returned this name, in any process on any machine."""
    return _PATTERN.fullmatch(name) is not None


def remove_temp_dir(folder: Path) -> None:
    """Remove a temporary folder, its manifest first: without it, what a kill leaves is not a checkpoint.

    What cannot be removed stays for the next :func:`multifit.checkpoints.atomic.recover`.
    """
    try:
        (folder / MANIFEST).unlink(missing_ok=True)
    except OSError:
        return  # a folder that cannot lose its first file would not lose the others
    shutil.rmtree(folder, ignore_errors=True)


def is_abandoned(path: Path, limit: float) -> bool:
    """Whether no process works in a temporary folder any more.

    This is so if it belongs to this process (which calls this when its own work is done) or to a process of
    this machine that has ended. Processes of other machines cannot be seen: their folders count as abandoned
    if they have not been modified since `limit`, a time of the file system in seconds.
    """
    machine, process = _PATTERN.fullmatch(path.name).groups()  # type: ignore[union-attr]
    if machine == _machine():
        return int(process) == os.getpid() or not _is_running(int(process))
    try:
        return path.stat().st_mtime < limit
    except OSError:  # its process is just removing it
        return False


def _is_running(process: int) -> bool:
    try:
        return bool(psutil.pid_exists(process))
    except OverflowError:  # not a process's number
        return False


def _machine() -> str:
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]
