"""Projecting conflicting gradients (PCGrad)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arguments import Seed, checked
from ..protocols import Numbers
from .protocol import GramianMethod


class PCGrad(GramianMethod):
    r"""Removes from each task's gradient what conflicts with the other tasks' gradients, one after the other.

    .. math:: c_i \leftarrow c_i - \min\bigl(0, \langle c_i, g_j \rangle\bigr) / \|g_j\|^2 \; g_j
        \quad \text{for all } j \ne i \text{ in random order}, \qquad g = \sum_i c_i

    The order depends on the seed and the number of batches trained before. The sum of the weights is at least
    K, and K if no two gradients conflict.

    Parameters
    ----------
    seed : int
        The seed of the order.
    **options
        Those of :class:`GramianMethod`.

    References
    ----------
    T. Yu et al.: Gradient Surgery for Multi-Task Learning. 2020, arXiv:2001.06782.
    """

    @checked
    def __init__(self, seed: Seed = 0, **options: Any) -> None:
        super().__init__(**options)
        self.seed = seed

    def solve(self, gramian: Numbers, step: int = 0) -> Numbers:
        """Return the sum of the rows c, each a combination of the gradients."""
        rows = np.eye(len(gramian))
        for i, order in enumerate(self.orders(step, len(gramian))):
            for j in order:
                product = gramian[j] @ rows[i]
                if j != i and product < 0:
                    rows[i, j] -= product / gramian[j, j]
        return np.asarray(rows.sum(axis=0))

    def orders(self, step: int, tasks: int) -> list[Any]:
        """Return, for each task, the order in which its conflicts with the other tasks are removed."""
        if tasks == 2:  # there is only one order, and making a generator takes long
            return [[1], [0]]
        random = np.random.default_rng([self.seed, step])
        return [random.permutation(tasks) for _ in range(tasks)]
