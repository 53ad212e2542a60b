"""Stop where a loss is no number any more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..arguments import whole_number
from ..triggers import Every

__all__ = ["TerminateOnNaN"]


class TerminateOnNaN:
    """Stops a fit at the first batch in which a loss is NaN or infinite, and names the loss and the batch.

    The parameters stay as they were before that batch, running statistics of BatchNorm too. Looking at the
    losses waits for the device; where that is too slow, look at fewer batches, and the parameters are those
    from before the batch that was looked at.

    Parameters
    ----------
    every : int
        Look at each so many batches, counted over all fits.

    Raises
    ------
    ValueError
        `every` is no whole number of at least 1.
    """

    def __init__(self, every: int = 1) -> None:
        self._trigger = Every(whole_number("TerminateOnNaN: every", every), "batch")
        self._statistics: list[tuple[Any, Any]] = []

    def batch_begin(self, estimator: Any, **facts: Any) -> None:
        """Keep what the forward pass changes."""
        due = self._trigger.due(estimator.state, "batch_begin")
        arrays = _statistics(estimator.parameters) if due else []
        self._statistics = [(array, array.copy()) for array in arrays]

    def hold_update(self, estimator: Any, loss: Mapping[str, list[Any]]) -> bool:
        """Look at the losses; say whether the parameters are to stay as they are."""
        # the batch is not counted yet, as at its begin
        if not self._trigger.due(estimator.state, "batch_begin"):
            return False
        found = [(name, kind) for name, values in loss.items() for kind in _wrong(values)]
        for array, value in self._statistics if found else ():
            value.copyto(array)
        self._statistics = []
        if not found:
            return False
        losses = ", ".join(f"{name} is {kind}" for name, kind in found)
        estimator.logger.error(
            "%s: %s; the parameters are those from before this batch", estimator.state.place, losses
        )
        estimator.state.stop(f"{losses} ({estimator.state.place})")
        return True


def _wrong(values: list[Any]) -> list[str]:
    """Return what is wrong with a loss, on all devices: NaN, else infinite, else nothing."""
    arrays = [np.asarray(value.asnumpy(), dtype="float64") for value in values]
    if any(np.isnan(array).any() for array in arrays):
        return ["NaN"]
    return ["infinite"] if any(np.isinf(array).any() for array in arrays) else []


def _statistics(parameters: Mapping[str, Any]) -> list[Any]:
    """Return the arrays, on all devices, that no gradient moves but the forward pass does."""
    found = (p for p in parameters.values() if not p._differentiable and p._data is not None)
    return [array for parameter in found for array in parameter.list_data()]
