"""Compare the tasks' gradients with respect to the parameters that they share."""

from __future__ import annotations

import copy
from typing import Any, Mapping, Sequence

import numpy as np
import torch

from ...distributed import World
from ...gluon.balance.chosen_parameters import ChosenParameters
from ...gluon.balance.task_gradients import summed
from ...gluon.balance.tasks import Tasks
from ...protocols import Numbers
from .shared_features import combined, numbers, product
from .tensors import Tensors


class ParameterGradients:
    """Compares exact gradients of parameters, at the cost of a backward pass for each task.

    The compared parameters are the shared ones whose names match `pattern`, or all shared ones if it is
    None. With several ranks, the compared rows are summed over the ranks. Raises SpecError if a pattern
    matches none.
    """

    repeats = True

    def __init__(
        self, pattern: str | None, parameters: Mapping[str, Any], world: World, device: torch.device
    ) -> None:
        self._parameters, self._world, self._device = parameters, world, device
        self._chosen = ChosenParameters(pattern, parameters, world)
        self._rows: Tensors = {}  # by parameter, in the batches that are measured

    def measure(self, result: Any, tasks: Tasks) -> tuple[Numbers, Numbers]:
        """Return a batch's losses (K,) and Gramian (K, K) over all ranks; this waits for them."""
        self._rows = {}
        for features in result.features:  # none if this process has no samples
            self._rows = features.parameter_rows(len(tasks.names))
        gramian, values = self._read(len(tasks.names), result.objectives)
        return summed(self._world, tasks.losses(result, values), gramian)

    def combine(self, features: Sequence[Any], weights: Numbers) -> None:
        """Combine the rows; if the batch was not measured, pass the weighted sum back through the body."""
        for each in features:
            if self._rows:
                each.gradients = self._combined(self._rows, weights)
            else:
                each.backward(weights)
        self._rows = {}

    def fork(self) -> ParameterGradients:
        """Return a copy that does not change this one: rows are replaced, never changed."""
        return copy.copy(self)

    def _combined(self, rows: Tensors, weights: Numbers) -> Tensors:
        return {
            name: combined(own, weights).reshape(self._parameters[name].shape) for name, own in rows.items()
        }

    def _read(self, tasks: int, losses: Sequence[torch.Tensor]) -> tuple[Numbers, list[float]]:
        """Return the Gramian of the ranks' summed rows, 0 on all ranks but the first, and the losses."""
        names = self._chosen.reached(self._rows)
        rows = [self._rows[name] if name in self._rows else self._zeros(name, tasks) for name in names]
        if not self._world.alone:
            rows = [row.clone() for row in rows]
            self._world.all_reduce_tensors(rows)
        gramian = torch.stack([product(each).double() for each in rows]).sum(0)
        values = numbers([gramian, *losses])
        products = values[: tasks * tasks].reshape(tasks, tasks)
        return products if self._world.first else np.zeros_like(products), values[tasks * tasks :].tolist()

    def _zeros(self, name: str, tasks: int) -> torch.Tensor:
        """Return the rows of a parameter that only other ranks' samples have reached."""
        parameter = self._parameters[name]
        dtype = getattr(torch, np.dtype(parameter.dtype).name)
        return torch.zeros((tasks, int(np.prod(parameter.shape))), dtype=dtype, device=self._device)
