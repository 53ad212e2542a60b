"""Weights by homoscedastic uncertainty (UW)."""

from __future__ import annotations

from typing import Annotated, Any

from ..arguments import Positive, checked
from .descent import OPTIMIZERS, descended, started
from .measured import Measured
from .protocol import LossMethod, State


class Uncertainty(LossMethod):
    r"""Learns how uncertain each task is, and weighs it with the inverse of its variance.

    .. math:: \min_{\theta, s} \sum_k \tfrac12 e^{-s_k} \ell_k + \tfrac12 s_k, \qquad w_k = \tfrac12 e^{-s_k}

    An optimizer of its own updates :math:`s_k`, the logarithm of a variance, after each batch. The sum of the
    weights is not fixed: it starts at K/2, and grows as the losses fall.

    Parameters
    ----------
    start : float
        :math:`s_k` at the beginning: 0 makes every weight 1/2, and -0.69 makes it 1.
    learning_rate : float
        The learning rate of :math:`s_k`. In the paper, the net's own optimizer learns it.
    optimizer : {"adam", "sgd"}
        The optimizer of :math:`s_k`.
    **options
        Those of :class:`LossMethod`.

    References
    ----------
    A. Kendall, Y. Gal, R. Cipolla: Multi-Task Learning Using Uncertainty to Weigh Losses for Scene Geometry
    and Semantics. 2018, arXiv:1705.07115.
    """

    @checked
    def __init__(
        self,
        start: float = 0.0,
        learning_rate: Positive = 1e-3,
        optimizer: Annotated[str, OPTIMIZERS] = "adam",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.at_start, self.learning_rate, self.optimizer = start, learning_rate, optimizer

    def start(self, tasks: int) -> State:
        """Return the logarithms of the variances before the first batch."""
        return started(self.at_start, tasks, self.optimizer)

    def weights(self, measured: Measured, state: State) -> tuple[Any, State]:
        """Return half the inverse variances, and the state after a step."""
        weights = 0.5 * measured.F.exp(-state["values"])
        gradient = 0.5 - weights * measured.losses
        return weights, descended(measured, state, gradient, self.learning_rate, self.optimizer)
