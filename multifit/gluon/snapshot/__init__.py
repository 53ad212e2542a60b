"""Save and restore the engine's part of a run: parameters, trainers, figures, random states; no pickle."""

from __future__ import annotations

from .figures import load_stage_state, stage_state
from .identity import identity
from .random import random_state, reseed, reseed_epoch, set_random_state
from .run import differences, read, read_identity, read_random, write
from .trainers import load_trainer_state, trainer_state
from .tree import read_tree, write_tree

__all__ = [
    "differences",
    "identity",
    "load_stage_state",
    "load_trainer_state",
    "random_state",
    "read",
    "read_identity",
    "read_random",
    "read_tree",
    "reseed",
    "reseed_epoch",
    "set_random_state",
    "stage_state",
    "trainer_state",
    "write",
    "write_tree",
]
