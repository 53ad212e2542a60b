"""The processes of a run: sums over them, and how each learns of another's failure.

Nothing here imports mxnet. A `Communicator` is a library that exists, such as torch.distributed, in a few
methods; `World` is what a run needs of one.
"""

from .communicator import Communicator
from .connect import KINDS, connect
from .launchers import launched
from .sharded import WAY_OUT, Sharded, unwrapped
from .world import ALONE, World

__all__ = [
    "ALONE",
    "KINDS",
    "WAY_OUT",
    "Communicator",
    "Sharded",
    "World",
    "connect",
    "launched",
    "unwrapped",
]
