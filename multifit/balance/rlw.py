"""Random loss weighting (RLW)."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from ..arguments import Seed, checked
from ..protocols import Numbers
from .measured import Measured
from .protocol import LossMethod, State

BLOCK = 256  # batches whose weights are drawn at once


class RLW(LossMethod):
    r"""Draws new weights for every batch.

    .. math:: w = \mathrm{softmax}(z), \qquad z_k \sim \mathcal N(0, 1)

    The weights depend on the seed and the number of batches trained before. Their sum is 1: with K tasks, the
    gradient is on average 1/K of the gradient of the summed losses, so a learning rate that was tuned for the
    sum is too low.

    Parameters
    ----------
    seed : int
        The seed of the weights.
    **options
        Those of :class:`LossMethod`.

    References
    ----------
    B. Lin et al.: Reasonable Effectiveness of Random Weighting: A Litmus Test for Multi-Task Learning. 2022,
    arXiv:2111.10603.
    """

    needs, on_device = "nothing", False

    @checked
    def __init__(self, seed: Seed = 0, **options: Any) -> None:
        super().__init__(**options)
        self.seed = seed

    def weights(self, measured: Measured, state: State) -> tuple[Any, State]:
        """Return weights that were drawn for this batch."""
        return _block(self.seed, measured.step // BLOCK, measured.tasks)[measured.step % BLOCK], state


@lru_cache(maxsize=4)
def _block(seed: int, number: int, tasks: int) -> Numbers:
    """Return the weights of many batches at once: making a generator takes much longer than drawing."""
    return softmax(np.random.default_rng([seed, number]).standard_normal((BLOCK, tasks)))


def softmax(rows: Numbers) -> Numbers:
    """Return the softmax of each row of moderate numbers."""
    values = np.exp(rows)
    return np.asarray(values / values.sum(axis=1, keepdims=True))
