"""Impartial weights of losses (IMTL-L)."""

from __future__ import annotations

from typing import Annotated, Any

from ..arguments import Positive, checked
from .descent import OPTIMIZERS, descended, started
from .measured import Measured
from .protocol import LossMethod, State


class IMTLL(LossMethod):
    r"""Learns factors that scale all losses to the same size.

    .. math:: \min_{\theta, s} \sum_k e^{s_k} \ell_k - s_k, \qquad w_k = e^{s_k}

    At the minimum over s, every weighted loss is 1. An optimizer of its own updates :math:`s_k` after each
    batch. The sum of the weights is not fixed: it starts at K, and grows as the losses fall.

    Parameters
    ----------
    learning_rate : float
        The learning rate of :math:`s_k`, which starts at 0. In the paper, the net's own optimizer learns it.
    optimizer : {"adam", "sgd"}
        The optimizer of :math:`s_k`.
    **options
        Those of :class:`LossMethod`.

    References
    ----------
    L. Liu et al.: Towards Impartial Multi-Task Learning. 2021, ICLR.
    """

    @checked
    def __init__(
        self, learning_rate: Positive = 1e-3, optimizer: Annotated[str, OPTIMIZERS] = "adam", **options: Any
    ) -> None:
        super().__init__(**options)
        self.learning_rate, self.optimizer = learning_rate, optimizer

    def start(self, tasks: int) -> State:
        """Return the logarithms of the weights before the first batch."""
        return started(0.0, tasks, self.optimizer)

    def weights(self, measured: Measured, state: State) -> tuple[Any, State]:
        """Return the weights, and their logarithms after a step."""
        weights = measured.F.exp(state["values"])
        gradient = weights * measured.losses - 1.0
        return weights, descended(measured, state, gradient, self.learning_rate, self.optimizer)
