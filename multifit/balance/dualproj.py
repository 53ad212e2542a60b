"""Projection of the mean gradient onto the dual cone (DualProj)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arguments import Positive, checked
from ..protocols import Numbers
from .protocol import GramianMethod
from .solvers import projected, regularized


class DualProj(GramianMethod):
    r"""Projects the mean of the gradients, so that it conflicts with no task's gradient.

    .. math:: w = \arg\min_{v \ge u} v^T M' v, \qquad M' = M / \mathrm{tr}(M) + \varepsilon I, \quad u_k = 1/K

    No task's loss grows along it, to first order. The sum of the weights is at least 1, and 1 if the mean
    conflicts with no gradient: with K tasks, the gradient is then 1/K of the gradient of the summed losses,
    so a learning rate that was tuned for the sum is too low.

    Parameters
    ----------
    regularization : float
        :math:`\varepsilon`; TorchJD uses 1e-4, see :class:`UPGrad`.
    **options
        Those of :class:`GramianMethod`.

    References
    ----------
    D. Lopez-Paz, M. Ranzato: Gradient Episodic Memory for Continual Learning. 2017, arXiv:1706.08840.
    """

    @checked
    def __init__(self, regularization: Positive = 1e-12, **options: Any) -> None:
        super().__init__(**options)
        self.regularization = regularization

    def solve(self, gramian: Numbers, step: int = 0) -> Numbers:
        """Return the weights of the projected mean."""
        mean = np.full(len(gramian), 1 / len(gramian))
        return projected(regularized(gramian, self.regularization), mean)
