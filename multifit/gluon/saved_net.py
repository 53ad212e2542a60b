"""Write and read a net's parameters in Gluon's format."""

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ..errors import last_line, quoted
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


def load_net(net: mx.gluon.Block, path: Path, contexts: Sequence[mx.Context]) -> None:
    """Load a net's parameters; raises ValueError if the file is damaged, or is that of a different net."""
    try:
        if not path.is_file():  # MXNet would wait for a pipe, and read a folder
            raise ValueError("it is a folder, not a file" if path.is_dir() else "there is no such file")
        net.load_parameters(str(path), ctx=contexts)
    except mx.base.MXNetError as error:
        raise ValueError(f"it is damaged, or holds no parameters ({last_line(error)})") from error
    except AttributeError as error:  # Gluon takes a list of arrays for a dict
        raise ValueError("its arrays have no names") from error
    except AssertionError as error:
        reason = last_line(error)
        if reason.startswith("restore_prefix"):  # none of its names is one of the net's
            reason = f"it holds {quoted(mx.nd.load(str(path)))}"
        raise ValueError(reason) from error
