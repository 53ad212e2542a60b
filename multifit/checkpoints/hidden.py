"""Folders on their way to be checkpoints, or from it.

A folder is filled under a hidden name, and goes back to a hidden name before it is removed or replaced: under
its proper name it is always whole. The hidden name carries the machine and the process, so that one can tell
from it whether somebody is still at work.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import socket
from pathlib import Path

from .manifest import MANIFEST

__all__ = ["discard", "hidden_name", "is_abandoned", "is_hidden", "is_name"]

_PATTERN = re.compile(r"\.checkpoint-([0-9a-f]{8})-([0-9]+)-[0-9a-f]{16}")


def hidden_name() -> str:
    """Return a new hidden name of this process."""
    return f".checkpoint-{_machine()}-{os.getpid()}-{secrets.token_hex(8)}"


def is_hidden(name: str) -> bool:
    """Whether this is a name that `hidden_name` makes, here or elsewhere."""
    return _PATTERN.fullmatch(name) is not None


def is_name(name: str) -> bool:
    """Whether a checkpoint may have this name: that of a folder, and not hidden."""
    return bool(name) and not name.startswith(".") and Path(name).name == name


def discard(folder: Path) -> None:
    """Remove a hidden folder, its manifest first: what is left by a kill in between is no checkpoint.

    What cannot be removed stays for the next write to sweep away.
    """
    try:
        (folder / MANIFEST).unlink(missing_ok=True)
    except OSError:
        return  # a folder that cannot lose its first file loses none
    shutil.rmtree(folder, ignore_errors=True)


def is_abandoned(path: Path, limit: float) -> bool:
    """Whether nobody is at work any more in a folder of a hidden name.

    That is so if its process is this one, which has just finished its work, or one of this machine that is no
    more; or, since other machines' processes cannot be seen, if nothing was done to it since a time.

    Parameters
    ----------
    path : Path
        The folder.
    limit : float
        That time, in seconds by the clock of the file system.
    """
    machine, process = _PATTERN.fullmatch(path.name).groups()  # type: ignore[union-attr]
    if machine == _machine():
        return int(process) == os.getpid() or not _alive(int(process))
    try:
        return path.stat().st_mtime < limit
    except OSError:  # its process is just taking it away
        return False


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def _machine() -> str:
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]
