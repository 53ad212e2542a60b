"""Gradient normalisation (GradNorm)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arguments import NotNegative, Positive, checked
from ..protocols import Numbers
from .measured import Measured
from .protocol import GramianMethod, State

LEAST = 1e-8  # replaces a weight that a step would make 0 or negative
ROUNDING = 1e-9  # relative difference up to which two lengths count as equal


class GradNorm(GramianMethod):
    r"""Keeps the tasks' weighted gradients near a common length, longer for tasks that train more slowly.

    .. math:: \min_w \sum_k \bigl| w_k \|g_k\| - \bar G r_k^\alpha \bigr|, \qquad
        r_k = \frac{\ell_k / \ell_k(0)}{\mathrm{mean}_j\; \ell_j / \ell_j(0)}

    where :math:`\bar G`, the mean of :math:`w_k \|g_k\|`, counts as constant. The weights take a step of
    gradient descent after each batch, and are then scaled so that their sum is K.

    Parameters
    ----------
    alpha : float
        How strongly tasks that train slowly are favoured.
    learning_rate : float
        The learning rate of the weights.
    **options
        Those of :class:`GramianMethod`. The paper uses the norms of the last shared layer's gradients.

    References
    ----------
    Z. Chen et al.: GradNorm: Gradient Normalization for Adaptive Loss Balancing in Deep Multitask Networks.
    2018, arXiv:1711.02257.
    """

    @checked
    def __init__(self, alpha: NotNegative = 1.5, learning_rate: Positive = 0.025, **options: Any) -> None:
        super().__init__(**options)
        self.alpha, self.learning_rate = alpha, learning_rate

    def start(self, tasks: int) -> State:
        """Return the weights before the first batch; the losses of a task's first batch are not known yet."""
        return {"weights": np.ones(tasks), "first": np.full(tasks, np.nan)}

    def weights(self, measured: Measured, state: State) -> tuple[Numbers, State]:
        """Return the weights, and the state with the weights after a step."""
        weights, first = state["weights"], state["first"]
        first = np.where(np.isnan(first), measured.losses, first)
        norms = np.sqrt(np.diag(measured.gramian))
        rates = measured.losses / first
        targets = np.mean(weights * norms) * (rates / rates.mean()) ** self.alpha
        excess = weights * norms - targets
        excess[np.abs(excess) <= ROUNDING * targets] = 0  # however small it is, its step is as long
        updated = weights - self.learning_rate * np.sign(excess) * norms
        updated = np.maximum(updated, LEAST)
        return weights, {"weights": updated * len(updated) / updated.sum(), "first": first}
