"""Multiple gradient descent algorithm (MGDA)."""

from __future__ import annotations

import numpy as np

from ..protocols import Numbers
from .protocol import GramianMethod
from .solvers import minimum


class MGDA(GramianMethod):
    r"""Takes the shortest weighted mean of the tasks' gradients.

    .. math:: w = \arg\min_{w \ge 0,\; \sum_k w_k = 1} w^T M w

    No task's loss grows along it, to first order. Solved exactly. The sum of the weights is 1: with K tasks,
    the gradient is at most 1/K of the gradient of the summed losses, so a learning rate that was tuned for
    the sum is too low. Tasks with small gradients get the most weight.

    References
    ----------
    J.-A. Désidéri: Multiple-Gradient Descent Algorithm (MGDA) for Multiobjective Optimization. 2012, Comptes
    Rendus Mathematique 350. O. Sener, V. Koltun: Multi-Task Learning as Multi-Objective Optimization. 2018,
    arXiv:1810.04650.
    """

    def solve(self, gramian: Numbers, step: int = 0) -> Numbers:
        """Return the weights of the shortest mean."""
        return minimum(gramian / np.trace(gramian), np.zeros(len(gramian)), total=1.0)
