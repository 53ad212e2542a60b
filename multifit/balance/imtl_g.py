"""Impartial gradients (IMTL-G)."""

from __future__ import annotations

import numpy as np

from ..protocols import Numbers
from .protocol import GramianMethod
from .solvers import equal_projections


class IMTLG(GramianMethod):
    r"""Takes the combination of gradients with equal projections on all of them.

    .. math:: w = v / \sum_k v_k, \qquad v = D^{-1} R^+ 1

    where D has the gradients' lengths and R their cosines. This is :math:`M^{-1} \sqrt{\mathrm{diag}\, M}`,
    but accurate even where the lengths differ by many powers of ten. Weights may be negative. Their sum is 1:
    with K tasks, the gradient is about 1/K of the gradient of the summed losses, so a learning rate that was
    tuned for the sum is too low. Where the sum of v is 0, v cannot be scaled to a sum of 1, and the mean of
    the gradients is taken.

    References
    ----------
    L. Liu et al.: Towards Impartial Multi-Task Learning. 2021, ICLR.
    """

    def solve(self, gramian: Numbers, step: int = 0) -> Numbers:
        """Return the weights with equal projections."""
        lengths, weights = np.sqrt(np.diag(gramian)), equal_projections(gramian)
        total = float(weights.sum())
        if abs(total) <= 1e-12 * float(np.sum(1 / lengths)):
            return np.full(len(gramian), 1 / len(gramian))
        return np.asarray(weights / total)
