"""Write files atomically: a reader never sees an incomplete one.

The content goes to a temporary file in the same folder, is flushed to the disk, and is renamed to the target
in one step (`os.replace`). If anything fails before that step, the target is unchanged.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path to write to, and rename it to `path` when the block ends without an error.

    Nothing exists there yet; it has the same suffix and folder, so that libraries that choose the format by
    the suffix work. Missing folders are created. A link is followed, not replaced; a device or a pipe
    (``/dev/null``, ``/dev/stdout``) is written to. Raises FileNotFoundError if nothing was written, and
    OSError if the folder cannot be created or written to: the target is then unchanged, and the temporary
    file removed.
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
    finally:
        temporary.unlink(missing_ok=True)


def atomic_write(path: str | os.PathLike[str], data: bytes | str) -> None:
    """Write `data` to `path` completely or not at all; see :func:`atomic_path`.

    A string is written as UTF-8, with its line ends unchanged. Raises OSError if the file cannot be written;
    the target is then unchanged.
    """
    with atomic_path(path) as temporary:
        temporary.write_bytes(data.encode("utf-8") if isinstance(data, str) else data)


def flush(path: Path) -> None:
    """Flush a file's content, or a folder's list of names, to the disk; OSError if the disk reports one.

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


def _is_stream(path: str | os.PathLike[str]) -> bool:
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return stat.S_ISCHR(mode) or stat.S_ISFIFO(mode)
