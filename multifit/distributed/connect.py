"""Connect the processes of a run, which a launcher has started."""

import atexit
import os
from collections.abc import Mapping
from importlib import import_module
from threading import TIMEOUT_MAX
from typing import Annotated, NamedTuple

from ..utils.arguments import bounds, checked, one_of
from ..utils.errors import PeerError
from ..utils.text import last_line
from .world import ALONE, World


class Library(NamedTuple):
    """A library that connects processes."""

    target: str  # module:class, imported when it is used
    variables: tuple[str, ...]  # its launcher sets one of them


LIBRARIES = {
    "horovod": Library(
        "multifit.gluon.ranks.horovod:HorovodWorld",
        ("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_RANK"),
    ),
    "torch": Library("multifit.torch.world:TorchWorld", ("WORLD_SIZE",)),
}
LOCAL_SIZES = "HOROVOD_LOCAL_SIZE", "LOCAL_WORLD_SIZE"
LOCAL_RANKS = "HOROVOD_LOCAL_RANK", "LOCAL_RANK"
KINDS = ("auto", "none", *LIBRARIES)
Seconds = Annotated[float, bounds(above=0, below=TIMEOUT_MAX)]


@checked
def connect(kind: Annotated[str, one_of(*KINDS)] = "auto", timeout: Seconds = 60.0) -> World:
    """Connect this process with the others of the run.

    Parameters
    ----------
    kind : {"auto", "horovod", "torch", "none"}
        ``"auto"`` depends on the launcher that started this process: it is Horovod for ``horovodrun``, and
        torch.distributed for ``torchrun``. Without a launcher it is ``"none"``, which means one process.
    timeout : float
        Seconds to wait for the other processes, now and in each sum or exchange.

    Returns
    -------
    World
        For ``MultiEstimator(..., world=)``.

    Raises
    ------
    ValueError
        The kind is unknown, torchrun's variables are missing, or the timeout is not valid.
    ImportError
        The library is not installed.
    PeerError
        Other processes do not connect in time.
    """
    launched = launched_with()
    if kind == "auto":
        kind = launched or "none"
    if kind == "none":
        return ALONE
    library = LIBRARIES[kind]
    if kind == "torch" and launched != "torch":
        raise ValueError(
            f'"{kind}" connects processes that a launcher started, but no launcher started this one: '
            "torchrun --nproc-per-node 2 -m multifit train FILE (without a launcher, "
            '"auto" trains in one process)'
        )
    module, _, name = library.target.partition(":")
    try:
        world: World = getattr(import_module(module), name)(timeout)
    except ImportError as error:
        raise ImportError(
            f'"{kind}" needs {kind}: pip install {kind} (see docs/distributed.md): {last_line(error)}'
        ) from error
    except Exception as error:
        raise PeerError(f"this process could not reach the others by {kind}: {last_line(error)}") from error
    atexit.register(world.close)
    return world


def launched_with(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the library whose launcher started this process as one of several; None if there is none."""
    for kind, library in LIBRARIES.items():
        if any(name in environment for name in library.variables):
            return kind
    return None


def local_size(environment: Mapping[str, str] = os.environ) -> int:
    """Return how many processes of the run share this machine."""
    return next((int(environment[name]) for name in LOCAL_SIZES if name in environment), 1)


def local_rank(environment: Mapping[str, str] = os.environ) -> int:
    """Return the number of this process among those of the run on this machine; 0 if it is alone."""
    ranks = (int(environment[name]) for name in LOCAL_RANKS if name in environment)
    return next(ranks, 0) if launched_with(environment) is not None else 0
