"""What the disk knows of a folder's files."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path
from typing import Any

__all__ = ["contents", "fingerprint", "flush"]

_CHUNK = 1 << 20


def contents(folder: Path) -> tuple[list[str], list[str]]:
    """Return the paths of a folder's files, with slashes and sorted, and of what is neither file nor folder.

    Links are of the second kind whatever they lead to, and never followed.
    """
    files: list[str] = []
    others: list[str] = []
    for parent, folders, names in os.walk(folder):
        for name in [*folders, *names]:
            path = Path(parent, name)
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                others.append(path.relative_to(folder).as_posix())
            elif path.is_file():
                files.append(path.relative_to(folder).as_posix())
    return sorted(files), sorted(others)


def fingerprint(path: Path) -> dict[str, Any]:
    """Return the size in bytes and the SHA-256 of a file, reading it piece by piece.

    Raises
    ------
    OSError
        It cannot be read.
    """
    digest, size = hashlib.sha256(), 0
    with open(path, "rb") as file:
        while True:
            chunk = file.read(_CHUNK)
            if not chunk:
                return {"size": size, "sha256": digest.hexdigest()}
            digest.update(chunk)
            size += len(chunk)


def flush(path: Path) -> None:
    """Have a file's content, or a folder's list of names, on the disk before returning.

    Some file systems cannot do that for folders, and say EINVAL; there is nothing more to be done then.

    Raises
    ------
    OSError
        The disk refuses.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)
