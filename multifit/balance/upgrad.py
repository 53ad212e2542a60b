"""Unconflicting projection of gradients (UPGrad)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arguments import Positive, checked
from ..protocols import Numbers
from .protocol import GramianMethod
from .solvers import projected, regularized


class UPGrad(GramianMethod):
    r"""Projects each task's gradient, so that it conflicts with no other task's, and takes the mean.

    .. math:: w = \sum_i \arg\min_{v \ge e_i / K} v^T M' v, \qquad M' = M / \mathrm{tr}(M) + \varepsilon I

    No task's loss grows along the mean, to first order, and tasks count in proportion to their gradients. The
    sum of the weights is at least 1, and 1 if no two gradients conflict: with K tasks, the gradient is then
    1/K of the gradient of the summed losses, so a learning rate that was tuned for the sum is too low.

    Parameters
    ----------
    regularization : float
        :math:`\varepsilon`. TorchJD uses 1e-4, which hides tasks whose gradients are a hundred times shorter
        than others'; in float64 a much smaller one is enough.
    **options
        Those of :class:`GramianMethod`.

    References
    ----------
    P. Quinton, V. Rey: Jacobian Descent for Multi-Objective Optimization. 2024, arXiv:2406.16232.
    """

    @checked
    def __init__(self, regularization: Positive = 1e-12, **options: Any) -> None:
        super().__init__(**options)
        self.regularization = regularization

    def solve(self, gramian: Numbers, step: int = 0) -> Numbers:
        """Return the sum of the projected gradients' weights."""
        tasks = len(gramian)
        if gramian.min() >= 0:  # no conflict: the projection changes nothing
            return np.array([1 / tasks] * tasks)
        definite = regularized(gramian, self.regularization)
        return np.asarray(sum(projected(definite, each) for each in np.eye(tasks) / tasks))
