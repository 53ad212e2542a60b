"""Compare the tasks' gradients with respect to the parameters that they share."""

from __future__ import annotations

import copy
from typing import Any, Mapping, Sequence

import numpy as np

from ...distributed import ALONE, World
from ...protocols import Array, Numbers
from ..compat import mx
from ..data.arrays import new_array
from ..distributed.collectives import all_reduce
from ..execution.result import StepResult
from ..execution.shared_features import Rows, SharedFeatures
from .chosen_parameters import ChosenParameters
from .task_gradients import summed
from .tasks import Tasks


class ParameterGradients:
    """Compares exact gradients of parameters, at the cost of a backward pass for each task.

    The compared parameters are the shared ones whose names match `pattern`, or all shared ones if it is
    None. With several ranks, the compared rows are summed over the ranks. Raises SpecError if a pattern
    matches none.
    """

    repeats = True

    def __init__(self, pattern: str | None, parameters: Mapping[str, Any], world: World) -> None:
        self._world, self._parameters = world, dict(parameters)
        self._names = {parameter: name for name, parameter in parameters.items()}
        self._chosen = ChosenParameters(pattern, parameters, world)
        self._rows: list[Rows] = []  # by device, in the batches that are measured

    def measure(self, result: StepResult, tasks: Tasks) -> tuple[Numbers, Numbers]:
        """Return the losses and the Gramian of the gradients summed over all devices and ranks."""
        every = list(self._parameters.values())
        self._rows = [each.parameter_rows(len(tasks.names), every) for each in result.features]
        return self._joined(tasks.read_losses(result, ALONE))

    def combine(self, features: Sequence[SharedFeatures], weights: Numbers) -> None:
        """Combine the rows; if the batch was not measured, pass the weighted sum back through the body."""
        if not self._rows:
            for each in features:
                each.backward(weights)
        for rows in self._rows:
            for parameter, row in rows.items():
                gradient = parameter.grad(row.context)
                factors = new_array(weights[np.newaxis], row.context, row.dtype)
                mx.nd.dot(factors, row).reshape(gradient.shape).copyto(gradient)
        self._rows = []

    def fork(self) -> ParameterGradients:
        """Return a copy that does not change this one."""
        return copy.copy(self)

    def _joined(self, losses: Numbers) -> tuple[Numbers, Numbers]:
        """Return the sum of the ranks' losses, and the Gramian of their summed rows of chosen parameters."""
        names = self._chosen.reached({self._names[parameter] for rows in self._rows for parameter in rows})
        rows = [self._of_devices(self._parameters[name], len(losses)) for name in names]
        all_reduce(self._world, rows)
        products = [mx.nd.dot(each, each, transpose_b=True).astype("float64") for each in rows]
        gramian = mx.nd.add_n(*products).asnumpy()
        return summed(self._world, losses, gramian if self._world.first else np.zeros_like(gramian))

    def _of_devices(self, parameter: Any, tasks: int) -> Array:
        """Return the sum of a parameter's rows over the devices; 0 if no sample on this rank reached it."""
        context = parameter.list_ctx()[0]
        rows = [each[parameter].as_in_context(context) for each in self._rows if parameter in each]
        if rows:
            return mx.nd.add_n(*rows)
        size = int(np.prod(parameter.shape))
        return mx.nd.zeros((tasks, size), ctx=context, dtype=parameter.dtype)
