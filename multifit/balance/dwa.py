"""Dynamic weight average (DWA)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arguments import Positive, checked_value
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

    def __init__(self, temperature: float = 2.0, **options: Any) -> None:
        super().__init__(**options)
        self.temperature: float = checked_value(f"{type(self).__name__}: temperature", temperature, Positive)

    def start(self, tasks: int) -> State:
        """Return the sums of this epoch, and the means of the two before it."""
        arrays = {name: np.zeros(tasks) for name in ("sums", "counts")}
        return {**arrays, "last": np.ones(tasks), "before": np.ones(tasks), "epoch": None, "done": 0}

    def weights(self, measured: Measured, state: State) -> tuple[Any, State]:
        """Return the weights of the epoch, and the sums with those of this batch."""
        F, state = measured.F, dict(state)
        if state["epoch"] != measured.epoch:
            state = state if state["epoch"] is None else self._after_epoch(F, state)
            state["epoch"] = measured.epoch
        state["sums"] = state["sums"] + measured.losses * measured.present
        state["counts"] = state["counts"] + measured.present
        if state["done"] < 2:
            return F.ones_like(state["last"]), state
        ratios = F.exp(state["last"] / state["before"] / self.temperature)
        return measured.tasks * ratios / F.sum(ratios, axis=0, keepdims=True), state

    def _after_epoch(self, F: Any, state: State) -> State:
        measured = state["counts"] > 0
        mean = F.where(measured, state["sums"] / F.maximum(state["counts"], 1.0), state["last"])
        zeros = F.zeros_like(mean)
        done = state["done"] + 1
        return {**state, "sums": zeros, "counts": zeros, "before": state["last"], "last": mean, "done": done}
