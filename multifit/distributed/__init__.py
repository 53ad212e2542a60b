"""The processes of a run: sums over them, and exchanges of values.

Nothing here imports mxnet. A `World` wraps an existing library, such as torch.distributed, in a few methods.
"""

from .connect import KINDS, connect, local_rank, local_size
from .sharded import WAY_OUT, Sharded, unwrapped
from .world import ALONE, World, with_peers

__all__ = [
    "ALONE",
    "KINDS",
    "WAY_OUT",
    "Sharded",
    "World",
    "connect",
    "local_rank",
    "local_size",
    "unwrapped",
    "with_peers",
]
