"""Writing files so that a reader never meets half of one.

The content goes to a temporary file in the same folder, is flushed to the disk, and takes the target's name
in one step (`os.replace`). Whatever happens before that step leaves the target as it was.
"""

from __future__ import annotations

import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["atomic_path", "atomic_write"]


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path to write to, and move it to `path` when the block ends well.

    Parameters
    ----------
    path : str or path
        The file to make or replace; its folder is made where there is none. A link is followed, not replaced.
        A device or a pipe (``/dev/null``, ``/dev/stdout``) is written to, not replaced.

    Yields
    ------
    Path
        A path with the same suffix in the same folder (what saves by suffix, as Matplotlib does, works).
        Nothing exists there yet.

    Raises
    ------
    FileNotFoundError
        Nothing was written to the temporary path.
    OSError
        The folder cannot be made or written to. The target is as it was, and the temporary file is gone.
    """
    if _is_stream(path):
        with tempfile.TemporaryDirectory() as folder:
            whole = Path(folder) / f"whole{Path(path).suffix}"
            yield whole
            Path(path).write_bytes(whole.read_bytes())
        return
    target = Path(os.path.realpath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{secrets.token_hex(8)}{target.suffix}")
    try:
        yield temporary
        _flush(temporary)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def atomic_write(path: str | os.PathLike[str], data: bytes | str) -> None:
    """Write `data` to `path` whole or not at all.

    Parameters
    ----------
    path : str or path
        The file to make or replace; its folder is made where there is none.
    data : bytes or str
        The content; a string is written as UTF-8, its line ends untouched.

    Raises
    ------
    OSError
        The file cannot be written. What stood there before still stands.
    """
    with atomic_path(path) as temporary:
        temporary.write_bytes(data.encode("utf-8") if isinstance(data, str) else data)


def _is_stream(path: str | os.PathLike[str]) -> bool:
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return stat.S_ISCHR(mode) or stat.S_ISFIFO(mode)


def _flush(path: Path) -> None:
    # Without this a power cut could leave the new name on a file whose content never reached the disk.
    with open(path, "rb+") as file:
        os.fsync(file.fileno())
