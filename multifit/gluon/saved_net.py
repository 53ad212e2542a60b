"""Write parameters in Gluon's format."""

import errno
import os
from collections.abc import Mapping
from pathlib import Path

from ..files import atomic_path
from .compat import mx

MORE = 1 << 20  # bytes


def save_arrays(arrays: Mapping[str, mx.nd.NDArray], path: Path) -> None:
    """Write named arrays atomically; raises OSError if they cannot be written completely."""
    with atomic_path(path) as temporary:
        try:
            mx.nd.save(str(temporary), dict(arrays))
            mx.nd.load(str(temporary))  # MXNet does not report that the disk is full for the last bytes
        except mx.base.MXNetError as error:
            raise _reason(temporary) from error


def _reason(path: Path) -> OSError:
    """Return why a file could not be written: MXNet does not say, but writing more fails for that reason."""
    try:
        with path.open("ab") as file:
            file.write(bytes(MORE))
    except OSError as error:
        return error
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
