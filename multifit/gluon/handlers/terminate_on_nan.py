"""Stop when a loss is NaN or infinite."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...arguments import Count, checked
from ...events import EstimatorProtocol
from ...triggers import Every


class TerminateOnNaN:
    """Stops a fit at the first batch in which a loss is NaN or infinite, and logs the loss and the batch.

    The parameters stay as they were before that batch, including the running statistics of BatchNorm.
    Checking the losses waits for the device. If that is too slow, check fewer batches: the parameters are
    then those from before the batch that was checked.

    Parameters
    ----------
    every : int
        Check every n-th batch, counted over all fits.

    Raises
    ------
    ValueError
        `every` is not a whole number of at least 1.
    """

    @checked
    def __init__(self, every: Count = 1) -> None:
        self._trigger = Every(every, "batch")
        self._copies: list[tuple[Any, Any]] = []

    def batch_begin(self, estimator: EstimatorProtocol, **facts: Any) -> None:
        """Copy the statistics that the forward pass changes."""
        due = self._trigger.due(estimator.state, "batch_begin")
        statistics = _running_statistics(estimator.parameters) if due else []
        self._copies = [(array, array.copy()) for array in statistics]

    def hold_update(self, estimator: EstimatorProtocol, loss: Mapping[str, list[Any]]) -> bool:
        """Check the losses, and return whether the parameters must not be updated."""
        # The batch is not counted yet, as in batch_begin.
        if not self._trigger.due(estimator.state, "batch_begin"):
            return False
        problems = [f"{name} is {problem}" for name, values in loss.items() for problem in _problems(values)]
        if problems:
            for array, copy in self._copies:
                copy.copyto(array)
            losses, place = ", ".join(problems), estimator.state.place
            estimator.logger.error("%s: %s; the parameters are those from before this batch", place, losses)
            estimator.state.stop(f"{losses} ({place})")
        self._copies = []
        return bool(problems)


def _problems(values: list[Any]) -> list[str]:
    """Return "NaN" or "infinite" if a loss is so on any device."""
    arrays = [np.asarray(value.asnumpy(), dtype="float64") for value in values]
    if any(np.isnan(array).any() for array in arrays):
        return ["NaN"]
    return ["infinite"] if any(np.isinf(array).any() for array in arrays) else []


def _running_statistics(parameters: Mapping[str, Any]) -> list[Any]:
    """Return the arrays, on all devices, that the forward pass changes and gradients do not."""
    reached = (p for p in parameters.values() if not p._differentiable and p._data is not None)
    return [array for parameter in reached for array in parameter.list_data()]
