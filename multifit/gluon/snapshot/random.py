"""Random generators: NumPy's and Python's states are saved; MXNet's cannot be read, and is seeded instead."""

from __future__ import annotations

import random
from typing import Any, Mapping

import numpy as np

from ..data.seeding import mixed, seed_everything, seed_operators

STEP, EPOCH = 0, 1  # separate streams for steps and epochs


def random_state() -> dict[str, Any]:
    """Return the states of NumPy's global generator and of Python's."""
    return {"numpy": np.random.get_state(), "python": random.getstate()}


def set_random_state(state: Mapping[str, Any]) -> None:
    """Set what :func:`random_state` returned."""
    np.random.set_state(state["numpy"])
    random.setstate(state["python"])


def reseed(seed: int, epoch: int, step: int) -> None:
    """Seed MXNet's generators, on all devices, for a step of the run; all arguments are at least 0."""
    seed_operators(mixed(seed, STEP, epoch, step))


def reseed_epoch(seed: int, epoch: int) -> None:
    """Seed Python's, NumPy's and MXNet's generators for an epoch; both arguments are at least 0."""
    seed_everything(mixed(seed, EPOCH, epoch))
