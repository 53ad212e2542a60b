"""Dynamic weight average (DWA)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arguments import Positive, checked
from .measured import Measured
from .protocol import LossMethod, State


class DWA(LossMethod):
    r"""Gives more weight to tasks whose losses fall more slowly from epoch to epoch.

    .. math:: w_k = K \, \mathrm{softmax}(r / T)_k, \qquad r_k = L_k(t - 1) / L_k(t - 2)

    where :math:`L_k(t)` is the mean loss of epoch t. In the first two epochs all weights are 1. The sum of
    the weights is K.

    Parameters
    ----------
    temperature : float
        T: the higher, the more equal the weights.
    **options
        Those of :class:`LossMethod`.

    References
    ----------
    S. Liu, E. Johns, A. J. Davison: End-to-End Multi-Task Learning with Attention. 2019, arXiv:1803.10704.
    """

    @checked
    def __init__(self, temperature: Positive = 2.0, **options: Any) -> None:
        super().__init__(**options)
        self.temperature = temperature

    def start(self, tasks: int) -> State:
        """Return the sums of this epoch, and the means of the two before it."""
        arrays = {name: np.zeros(tasks) for name in ("sums", "counts")}
        means = {name: np.ones(tasks) for name in ("last", "before")}
        return {**arrays, **means, "epoch": np.full(tasks, -1.0), "done": np.full(tasks, -1.0)}

    def weights(self, measured: Measured, state: State) -> tuple[Any, State]:
        """Return the weights of the epoch, and the state with the losses of this batch added."""
        F, next_epoch = measured.F, self._after_epoch(measured.F, state)
        is_new = state["epoch"] != measured.epoch
        state = {name: F.where(is_new, next_epoch[name], state[name]) for name in next_epoch}
        state["sums"] = state["sums"] + measured.losses * measured.present
        state["counts"] = state["counts"] + measured.present
        state["epoch"] = measured.epoch
        ratios = F.exp(state["last"] / state["before"] / self.temperature)
        weights = measured.tasks * ratios / measured.repeated(F.sum(ratios, axis=0, keepdims=True))
        return F.where(state["done"] < 2, F.ones_like(weights), weights), state

    def _after_epoch(self, F: Any, state: State) -> State:
        mean = F.where(state["counts"] > 0, state["sums"] / F.maximum(state["counts"], 1.0), state["last"])
        zeros = F.zeros_like(mean)
        ended = {"sums": zeros, "counts": zeros, "before": state["last"], "last": mean}
        return {**ended, "done": state["done"] + 1}
