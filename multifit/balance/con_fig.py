"""Conflict-free inverse gradients (ConFIG)."""

from __future__ import annotations

import numpy as np

from ..protocols import Numbers
from .protocol import GramianMethod
from .solvers import equal_projections


class ConFIG(GramianMethod):
    r"""Takes the direction with equal cosines to all gradients, and the sum of their projections as length.

    .. math:: w = a \, \frac{1^T M a}{a^T M a}, \qquad a = D^{-1} R^+ 1

    where D has the gradients' lengths and R their cosines. The sum of the weights is not fixed: without
    conflicts, the gradient is about as long as the sum of the gradients projected on it.

    References
    ----------
    Q. Liu, M. Chu, N. Thuerey: ConFIG: Towards Conflict-free Training of Physics Informed Neural Networks.
    2024, arXiv:2408.11104.
    """

    def solve(self, gramian: Numbers, step: int = 0) -> Numbers:
        """Return the weights of the conflict-free direction."""
        direction = equal_projections(gramian)
        square = float(direction @ gramian @ direction)
        return np.asarray(direction * float(np.sum(gramian @ direction)) / square)
