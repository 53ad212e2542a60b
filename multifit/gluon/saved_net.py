"""Write a net's parameters in Gluon's format."""

import errno
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from ..files import atomic_path
from .compat import mx
from .waiting import wait_for_operators

MORE = 1 << 20  # bytes


def save_net(net: mx.gluon.Block, path: Path) -> None:
    """Write a net's parameters atomically; raises OSError if they cannot be written completely."""
    wait_for_operators()
    _write(path, net.save_parameters)


def save_arrays(arrays: Mapping[str, mx.nd.NDArray], path: Path) -> None:
    """Write named arrays atomically; raises OSError if they cannot be written completely."""
    _write(path, lambda file: mx.nd.save(file, dict(arrays)))


def _write(path: Path, save: Callable[[str], object]) -> None:
    with atomic_path(path) as temporary:
        try:
            save(str(temporary))
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
