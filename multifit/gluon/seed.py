"""One call that seeds every random source that a run draws from."""

from __future__ import annotations

import random

import numpy as np

from .compat import mx

__all__ = ["seed_everything"]


def seed_everything(seed: int) -> None:
    """Seed Python's, NumPy's and MXNet's random generators.

    Initial parameters, dropout, flips and colour jitter follow MXNet's; shuffling follows NumPy's;
    ``RandomResizedCrop`` follows Python's.

    Parameters
    ----------
    seed : int
        From 0 to 2**32 - 1 (NumPy's range; MXNet takes it modulo 2**31).

    Raises
    ------
    ValueError
        The seed is outside that range.
    """
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed must be from 0 to {2**32 - 1}, not {seed}")
    random.seed(seed)
    np.random.seed(seed)
    mx.random.seed(seed % 2**31)
