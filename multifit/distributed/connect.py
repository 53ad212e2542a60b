"""Connect the processes of a run, which a launcher has started."""

from __future__ import annotations

import atexit
import platform
from contextlib import suppress
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import Annotated, NamedTuple, Union

from ..arguments import checked, one_of
from ..errors import PeerError, last_line
from ..version import __version__
from .communicator import AnyCommunicator, Communicator, Seconds
from .launchers import launched
from .world import ALONE, World


class Entry(NamedTuple):
    """A communicator that comes with multifit."""

    target: str  # module:class, imported when it is used
    command: str  # starts a run with it


COMMUNICATORS = {
    "horovod": Entry(
        "multifit.gluon.distributed.horovod:HorovodCommunicator", "horovodrun -np 2 multifit train FILE"
    ),
    "torch": Entry(
        "multifit.distributed.torch_communicator:TorchCommunicator",
        "torchrun --nproc-per-node 2 -m multifit train FILE",
    ),
}
INSTALL = '"{0}" needs {0}: pip install {0} (see docs/distributed.md)'
PACKAGES = ("numpy", "mxnet", "mxnet-cu112", "mxnet-cu117")
KINDS = ("auto", "none", *COMMUNICATORS)
_Kind = Annotated[str, one_of(*KINDS)]


@checked
def connect(kind: Union[_Kind, AnyCommunicator] = "auto", timeout: Seconds = 60.0) -> World:
    """Connect this process with the others of the run.

    Parameters
    ----------
    kind : {"auto", "horovod", "torch", "none"} or Communicator
        ``"auto"`` depends on the launcher that started this process: it is Horovod for ``horovodrun``,
        torch.distributed for ``torchrun``, and, for ``mpirun`` and ``srun``, Horovod if it is installed, else
        torch.distributed. Without a launcher it is ``"none"``, which means one process. An object with the
        methods of a Communicator is used as it is.
    timeout : float
        Seconds to wait for the other processes, now and whenever they meet. A process that comes later counts
        as failed.

    Returns
    -------
    World
        For ``MultiEstimator(..., world=)``.

    Raises
    ------
    ValueError
        The kind is unknown, no launcher started this process, or an argument is not valid.
    ImportError
        The library is not installed.
    PeerError
        Other processes do not connect in time, or run other versions of Python or of a library.
    """
    if isinstance(kind, str):
        name = _choose(kind)
        if name == "none":
            return ALONE
        kind = _make(name, timeout)
    world = World(kind, timeout)
    atexit.register(world.close)
    world.introduce(versions=versions())
    return world


def versions() -> dict[str, str]:
    """Return the versions of Python and of libraries; equal versions give equal results on all ranks."""
    installed = {"Python": platform.python_version(), "multifit": __version__}
    for package in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            installed[package] = metadata.version(package)
    return installed


def _choose(kind: str) -> str:
    """Return the kind, for ``"auto"`` the one that fits the launcher; raise ValueError or ImportError."""
    launcher = launched()
    if kind == "auto":
        kind = {None: "none", "horovodrun": "horovod", "torchrun": "torch"}.get(launcher) or _installed()
    elif kind != "none" and launcher is None:
        raise ValueError(
            f'"{kind}" connects processes that a launcher started, but no launcher started this one: '
            f'{COMMUNICATORS[kind].command} ("auto" trains in one process where there is no launcher)'
        )
    return kind


def _installed() -> str:
    for kind in COMMUNICATORS:
        if find_spec(kind) is not None:
            return kind
    raise ImportError(
        f"{launched()} started several processes, and nothing that connects them is installed: "
        + ", or ".join(INSTALL.format(kind) for kind in COMMUNICATORS)
        + ' ("none" trains in each of them alone)'
    )


def _make(kind: str, timeout: float) -> Communicator:
    module, _, name = COMMUNICATORS[kind].target.partition(":")
    try:
        communicator: Communicator = getattr(import_module(module), name)(timeout)
    except ImportError as error:
        raise ImportError(f"{INSTALL.format(kind)}: {last_line(error)}") from error
    except Exception as error:
        raise PeerError(f"this process could not reach the others by {kind}: {last_line(error)}") from error
    return communicator
