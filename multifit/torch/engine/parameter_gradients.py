"""Compares the tasks' gradients of the parameters that they share."""

from __future__ import annotations

import copy
from typing import Any, Mapping, Sequence

import numpy as np

from ...errors import SpecError
from ...gluon.balance.task_gradients import matching, nothing_selected
from ...gluon.balance.tasks import Tasks
from .parting import Numbers, combined, numbers, product
from .tensors import Tensors


class ParameterGradients:
    """Compares exact gradients, at the cost of a backward pass for each task.

    Those of parameters whose names match `pattern` are compared; of all that are shared if it is None. Raises
    SpecError if a pattern matches none.
    """

    repeats = True

    def __init__(self, pattern: str | None, parameters: Mapping[str, Any]) -> None:
        self._pattern = pattern
        self._chosen = set(parameters) if pattern is None else set(matching(pattern, parameters))
        self._rows: Tensors | None = None  # in the batch that is measured

    def fork(self) -> ParameterGradients:
        """Return what measures apart from this one."""
        return copy.copy(self)

    def measure(self, result: Any, tasks: Tasks) -> tuple[Numbers, Numbers]:
        """Return the tasks' losses (K,) and Gramian (K, K) in a batch; reads them at once."""
        (parting,), count = result.partings, len(tasks.names)
        self._rows = parting.parameter_rows(count)
        compared = [product(rows).double() for name, rows in self._rows.items() if name in self._chosen]
        if not compared:
            raise SpecError(nothing_selected(self._pattern))
        values = numbers([sum(compared), *result.objectives])
        gramian, losses = np.split(values, [count * count])
        return tasks.losses(result, losses.tolist()), gramian.reshape(count, count)

    def combine(self, partings: Sequence[Any], weights: Numbers) -> None:
        """Combine the rows, or in a batch that was not measured pass the weighted sum back."""
        (parting,) = partings
        if self._rows is None:
            parting.backward(weights)
            return
        parting.gradients = {
            name: combined(rows, weights).reshape(parting.parameters[name].shape)
            for name, rows in self._rows.items()
        }
        self._rows = None
