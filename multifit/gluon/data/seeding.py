"""Seed all random generators that a run uses, and preserve their state."""

from __future__ import annotations

import random
from contextlib import contextmanager
from typing import Callable, Iterator

import numpy as np

from ..compat import mx

RANK = 2  # a stream of random numbers besides those for steps (0) and epochs (1)
SEEDERS: list[Callable[[int], object]] = [mx.random.seed]  # of the generators of operators, by engine


def seed_everything(seed: int) -> None:
    """Seed Python's, NumPy's and MXNet's random generators.

    Initial parameters, dropout, flips and colour jitter use MXNet's generator, shuffling uses NumPy's, and
    ``RandomResizedCrop`` uses Python's. Raises ValueError unless the seed is from 0 to 2**32 - 1 (NumPy's
    range; MXNet takes it modulo 2**31).
    """
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed must be from 0 to {2**32 - 1}, not {seed}")
    random.seed(seed)
    np.random.seed(seed)
    seed_operators(seed)


def seed_operators(seed: int) -> None:
    """Seed the generators of operators, such as dropout's, whose states cannot be read."""
    for seeder in SEEDERS:
        seeder(seed % 2**31)


def mixed(*numbers: int) -> int:
    """Hash numbers of at least 0, whose order counts, to one of 32 bits.

    By M. E. O'Neill's ``seed_seq``, which NumPy promises never to change.
    """
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


def seed_of_rank(seed: int, rank: int) -> int:
    """Return the seed of a rank's own random numbers; the first one's are those of a process alone."""
    return mixed(seed, RANK, rank) if rank else seed


@contextmanager
def preserve_rng() -> Iterator[None]:
    """Restore NumPy's and Python's random state after the block; MXNet's cannot be read."""
    numpy_state, python_state = np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        np.random.set_state(numpy_state)
        random.setstate(python_state)
