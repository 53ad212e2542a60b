"""Fast adaptive multitask optimization (FAMO)."""

from __future__ import annotations

from typing import Any

from ..arguments import NotNegative, Positive, checked
from .descent import descended, started
from .measured import Measured
from .protocol import LossMethod, State

TINY = 1e-8


class FAMO(LossMethod):
    r"""Lets all losses fall at the same relative rate, at the cost of a second forward pass.

    .. math:: z = \mathrm{softmax}(\omega), \qquad w_k = \frac{c\,z_k}{\ell_k + 10^{-8}}, \qquad
        c = 1 \Big/ \sum_k \frac{z_k}{\ell_k + 10^{-8}}

    After the parameters were updated, the losses of the same batch are computed again, and Adam updates
    :math:`\omega` along :math:`J^T (\log \ell - \log \ell')`, J being the Jacobian of the softmax. All losses
    must be positive. The sum of the weights is 1: with K tasks, the gradient is about 1/K of the gradient of
    the summed losses, so a learning rate that was tuned for the sum is too low.

    Parameters
    ----------
    learning_rate : float
        The learning rate of :math:`\omega`.
    weight_decay : float
        How strongly :math:`\omega` is pulled to 0: 1e-3 in the paper, 1e-5 in its authors' code.
    **options
        Those of :class:`LossMethod`.

    References
    ----------
    B. Liu, Y. Feng, P. Stone, Q. Liu: FAMO: Fast Adaptive Multitask Optimization. 2023, arXiv:2306.03792.
    """

    @checked
    def __init__(
        self, learning_rate: Positive = 0.025, weight_decay: NotNegative = 1e-3, **options: Any
    ) -> None:
        super().__init__(**options)
        self.learning_rate, self.weight_decay = learning_rate, weight_decay

    def start(self, tasks: int) -> State:
        """Return the logits of the softmax before the first batch."""
        return started(0.0, tasks, "adam")

    def weights(self, measured: Measured, state: State) -> tuple[Any, State]:
        """Return the weights; the logits change in `after_update`."""
        shares = self._shares(measured, state) / (measured.losses + TINY)
        return shares / _at_least_tiny(measured, measured.total(shares)), state

    def after_update(self, measured: Measured, after: Any, state: State) -> State:
        """Return the new state; `after` are the losses of the same batch after the update."""
        F, shares = measured.F, self._shares(measured, state)
        after = F.where(measured.present == 1, after, F.ones_like(after))
        falls = F.log(measured.losses + TINY) - F.log(after + TINY)
        gradient = shares * (falls - measured.total(shares * falls)) + self.weight_decay * state["values"]
        return descended(measured, state, gradient, self.learning_rate)

    def _shares(self, measured: Measured, state: State) -> Any:
        F = measured.F
        largest = measured.repeated(F.max(state["values"], axis=0, keepdims=True))
        powers = F.exp(state["values"] - largest) * measured.present
        return powers / _at_least_tiny(measured, measured.total(powers))


def _at_least_tiny(measured: Measured, total: Any) -> Any:
    """Return a sum to divide by, but at least a tiny number: the sum is 0 if no task is present."""
    return measured.F.maximum(total, 1e-300)
