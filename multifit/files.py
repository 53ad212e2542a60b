"""Write files atomically, and read files that anybody may have written.

A reader never sees an incomplete file: the content goes to a temporary file in the same folder, is flushed to
the disk, and is renamed to the target in one step (`os.replace`). If anything fails before that step, the
target is unchanged. What is read is bounded: no file can hang the reader, or exhaust its memory or stack.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import secrets
import stat
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

OF_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}  # errors that name no file
CHUNK = 1 << 20  # bytes of a file that are hashed at once
MOST_BYTES = 1 << 26  # of a file that is read: a history of a million epochs has fewer
MOST_LEVELS = 200  # of nested lists and objects
TOO_DEEP = f"it nests lists or objects more than {MOST_LEVELS} deep"


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path to write to, and rename it to `path` when the block ends without an error.

    Nothing exists there yet; it has the same suffix and folder, so that libraries that choose the format by
    the suffix work. Missing folders are created. A link is followed, not replaced; a device or a pipe
    (``/dev/null``, ``/dev/stdout``) is written to. Raises FileNotFoundError if nothing was written, and
    OSError if the folder cannot be created or written to: the target is then unchanged, the temporary
    file removed, and the error names the target.
    """
    if _is_stream(path):
        with tempfile.TemporaryDirectory() as folder:
            temporary = Path(folder) / f"content{Path(path).suffix}"
            yield temporary
            Path(path).write_bytes(temporary.read_bytes())
        return
    target = Path(os.path.realpath(path))
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

    A string is written as UTF-8, with its line ends unchanged. Raises OSError if the file cannot be written;
    the target is then unchanged.
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


def read_json(path: str | os.PathLike[str], finite: bool = True, limit: int = MOST_BYTES) -> Any:
    """Return the content of a JSON file; see :func:`read_regular` and :func:`parse_json`.

    Raises OSError if it cannot be opened, and ValueError, with the path, for anything else that is wrong.
    """
    try:
        return parse_json(read_regular(path, limit), finite)
    except ValueError as error:
        raise ValueError(f"{os.fspath(path)}: {error}") from None


def read_regular(path: str | os.PathLike[str], limit: int = MOST_BYTES) -> bytes:
    """Return the bytes of a regular file, without waiting for the other end of a pipe.

    Raises OSError if it cannot be opened; ValueError if it is a pipe or a device, or larger than `limit`.
    """
    with open(path, "rb", opener=_open_at_once) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("it is not a regular file")
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"it is larger than {limit >> 20} MiB")
    return data


def parse_json(data: bytes | str, finite: bool = True) -> Any:
    """Return the content of a JSON text, in UTF-8.

    Numbers must fit a float and, with `finite`, must not be NaN or infinite, which Python writes by default.
    Lists and objects must not be nested more than `MOST_LEVELS` deep. Raises ValueError for anything else.
    """
    text = data.decode("utf-8") if isinstance(data, bytes) else data
    refuse = _refuse if finite else None
    try:
        content = json.loads(
            text, parse_constant=refuse, parse_float=_finite if finite else None, parse_int=_int
        )
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    level, levels = list(_inner([content])), 0  # not a recursion
    while level:
        levels += 1
        if levels > MOST_LEVELS:
            raise ValueError(TOO_DEEP)
        level = [inner for container in level for inner in _inner(container)]
    return content


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # else a pipe would wait for its writer


def _inner(container: dict[str, Any] | list[Any]) -> Iterator[dict[str, Any] | list[Any]]:
    values = container.values() if isinstance(container, dict) else container
    return (value for value in values if isinstance(value, (dict, list)))


def _refuse(number: str) -> float:
    raise ValueError(f"the number {number[:20]} is not finite, or too large")


def _finite(number: str) -> float:
    value = float(number)
    return value if math.isfinite(value) else _refuse(number)


def _int(number: str) -> int:
    _finite(number)
    return int(number)


def _is_stream(path: str | os.PathLike[str]) -> bool:
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return stat.S_ISCHR(mode) or stat.S_ISFIFO(mode)
