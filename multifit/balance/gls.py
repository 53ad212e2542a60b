"""Geometric loss strategy (GLS)."""

from __future__ import annotations

from typing import Any

from .measured import Measured
from .protocol import LossMethod, State


class GLS(LossMethod):
    r"""Minimises the geometric mean of the losses, which does not depend on how they are scaled.

    .. math:: L = \Bigl(\prod_k \ell_k\Bigr)^{1/K}, \qquad w_k = \partial L / \partial \ell_k = L / (K \ell_k)

    All losses must be positive; one that is not makes the weights NaN. The sum of the weights is not fixed;
    it is at least 1, and 1 if all losses are equal.

    References
    ----------
    S. Chennupati et al.: MultiNet++: Multi-Stream Feature Aggregation and Geometric Loss Strategy for
    Multi-Task Learning. 2019, arXiv:1904.08492.
    """

    def weights(self, measured: Measured, state: State) -> tuple[Any, State]:
        """Return the derivatives of the geometric mean."""
        F = measured.F
        tasks = F.maximum(measured.total(F.ones_like(measured.losses)), 1.0)
        mean = F.exp(measured.total(F.log(measured.losses)) / tasks)
        return mean / (tasks * measured.losses), state
