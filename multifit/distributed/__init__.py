"""The processes of a run: sums over them, and how each learns of another's failure.

Nothing here imports mxnet. A `Communicator` wraps an existing library, such as torch.distributed, in a few
methods. `World` builds what a run needs on one.
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
