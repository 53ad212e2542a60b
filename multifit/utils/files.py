"""Write files atomically, and read JSON.

A reader never sees an incomplete file: the content goes to a temporary file in the same folder, is flushed to
the disk, and is renamed to the target in one step (`os.replace`). If anything fails before that step, the
target is unchanged.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

OF_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}  # errors that name no file
CHUNK = 1 << 20  # bytes of a file that are hashed at once


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path to write to, and rename it to `path` when the block ends without an error.

    Nothing exists there yet; it has the same suffix and folder, so that libraries that choose the format by
    the suffix work. Missing folders are created. A link is followed, not replaced; a device or a pipe
    (``/dev/null``, ``/dev/stdout``) is written to itself. Raises FileNotFoundError if nothing was written,
    and OSError if the folder cannot be created or written to: the target is then unchanged, the temporary
    file removed, and the error names the target.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        yield Path(path)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{secrets.token_hex(8)}{target.suffix}")
    try:
        yield temporary
        flush(temporary)
        os.replace(temporary, target)
    except OSError as error:
        if error.filename == str(temporary) or (error.filename is None and error.errno in OF_DISK):
            error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def atomic_write(path: str | os.PathLike[str], data: bytes | str) -> None:
    """Write `data` to `path` completely or not at all; see :func:`atomic_path`.

    A string is written as UTF-8, with its line ends unchanged.
    """
    with atomic_path(path) as temporary:
        temporary.write_bytes(data.encode("utf-8") if isinstance(data, str) else data)


def write_arrays(path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Write arrays for `numpy.load` to `path`, completely or not at all; see :func:`atomic_path`.

    `numpy.savez` does not take every name, and does not close the file if the disk is full.
    """
    with atomic_path(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.save(file, array, allow_pickle=False)


def check_folder(argument: str, folder: Path) -> None:
    """Raise ValueError if a folder to write to is a file, or within one."""
    for path in (folder, *folder.absolute().parents):
        if path.exists() and not path.is_dir():
            raise ValueError(f"{argument}={str(folder)!r}: {path} is a file; give a folder")


def flush(path: Path) -> None:
    """Flush a file's content, or a folder's list of names, to the disk. Raises OSError if that fails.

    Without this, a power cut could leave a new name on a file whose content never reached the disk. Some file
    systems cannot flush folders and say EINVAL, which is ignored.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hex; the file is read in chunks."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for chunk in iter(lambda: file.read(CHUNK), b""):
            digest.update(chunk)
    return digest.hexdigest()


def read_json(path: str | os.PathLike[str], finite: bool = True) -> Any:
    """Return the content of a JSON file; see :func:`parse_json`.

    Raises OSError if it cannot be read, and ValueError, with the path, for anything else that is wrong.
    """
    try:
        return parse_json(Path(path).read_bytes(), finite)
    except ValueError as error:
        raise ValueError(f"{os.fspath(path)}: {error}") from None


def parse_json(data: bytes | str, finite: bool = True) -> Any:
    """Return the content of a JSON text, in UTF-8; raises ValueError if it is not valid.

    With `finite`, NaN and infinity, which Python writes by default, are not valid.
    """
    text = data.decode("utf-8") if isinstance(data, bytes) else data
    return json.loads(text, parse_constant=_refuse if finite else None)


def _refuse(number: str) -> float:
    raise ValueError(f"the number {number} is not finite")
