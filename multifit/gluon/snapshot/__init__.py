"""Save and load the engine's part of a run: parameters, trainers, figures, random states; no pickle."""

from __future__ import annotations

from .random import random_state, reseed, reseed_epoch, set_random_state
from .run import differences, read, read_random, write
from .tree import read_tree, write_tree

__all__ = [
    "differences",
    "random_state",
    "read",
    "read_random",
    "read_tree",
    "reseed",
    "reseed_epoch",
    "set_random_state",
    "write",
    "write_tree",
]
