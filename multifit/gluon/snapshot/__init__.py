"""Save and load the engine's part of a run: parameters, trainers, figures, random states; no pickle."""

from __future__ import annotations

from ..data.seeding import random_state, reseed, reseed_epoch, set_random_state
from .differences import differing
from .identity import identity
from .ranks import gather_trees, read_own_tree, write_ranks
from .run import differences, own_state, read, read_random, share_trainers, write
from .tree import read_tree, write_tree

__all__ = [
    "differences",
    "differing",
    "gather_trees",
    "identity",
    "own_state",
    "random_state",
    "read",
    "read_own_tree",
    "read_random",
    "read_tree",
    "reseed",
    "reseed_epoch",
    "set_random_state",
    "share_trainers",
    "write",
    "write_ranks",
    "write_tree",
]
