"""Weighs the gradients of tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...balance import compared
from ...balance.compared import ChosenParameters, Products
from ...balance.tasks import Tasks
from ...distributed import World
from ...engines import Timer, untimed
from ...protocols import Array, Numbers
from ...state import RunState
from ..compat import mx
from ..ranks.collectives import all_reduce
from ..step.parameter_rows import ParameterRows
from ..step.result import StepResult
from ..step.split_graph import measuring
from .arrays import task_losses


class FeatureGradients:
    """Compares the gradients with respect to features; there is one backward pass through the body."""

    def measure(self, result: StepResult, tasks: Tasks) -> tuple[Numbers, Products]:
        """Return the losses, and the inner products of the gradients for each array on each device."""
        one_device = len(result.features) == 1  # then losses and products are read at once
        products, values = Products(), None
        for features in result.features:
            of_device, read = features.measure(result.objectives if one_device else ())
            products += of_device
            values = read if one_device else None
        return task_losses(result, tasks, values), products

    def combine(self, result: StepResult, weights: Numbers) -> None:
        """Pass the weighted sum of the features' gradients back."""
        for each in result.features:
            each.backward(weights)


class ParameterGradients(FeatureGradients):
    """Compares exact gradients of parameters, at the cost of a backward pass for each task.

    The compared parameters are the `chosen` ones that tasks share. With several ranks, the compared rows are
    summed over the ranks.
    """

    def __init__(self, chosen: ChosenParameters, parameters: Mapping[str, Any], world: World) -> None:
        self._chosen, self._world, self._parameters = chosen, world, dict(parameters)
        self._names = {parameter: name for name, parameter in parameters.items()}
        self._by_device: dict[Any, ParameterRows] = {}  # batches rewrite them
        self._rows: list[ParameterRows] = []  # by device, in the batches that are measured

    def measure(self, result: StepResult, tasks: Tasks) -> tuple[Numbers, Products]:
        """Return the losses, and the Gramian of the gradients summed over all devices and ranks."""
        count, every = len(tasks.names), list(self._parameters.values())
        self._rows = [each.parameter_rows(count, every, self._by_device) for each in result.features]
        names = self._chosen.reached({self._names[each] for rows in self._rows for each in rows.values})
        compared = [self._of_devices(self._parameters[name], count) for name in names]
        all_reduce(self._world, compared)
        losses = [each.as_in_context(compared[0].context) for each in result.objectives]
        are_floats = tuple([np.dtype(each.dtype).kind == "f" for each in compared])
        values = measuring(len(losses), are_floats)(*compared, *losses).asnumpy()
        products, of_losses = np.split(values, [len(compared) * count * count])
        gramian = products.reshape(-1, count, count).sum(axis=0)
        return task_losses(result, tasks, of_losses.tolist()), [(range(count), gramian)]

    def combine(self, result: StepResult, weights: Numbers) -> None:
        """Combine the rows; if the batch was not measured, pass the weighted sum back through the body."""
        if not self._rows:
            super().combine(result, weights)
        for rows in self._rows:
            rows.combine(weights)
        self._rows = []

    def _of_devices(self, parameter: Any, tasks: int) -> Array:
        """Return the sum of a parameter's rows over the devices; 0 if no sample on this rank reached it."""
        context = parameter.list_ctx()[0]
        rows = [each.values[parameter] for each in self._rows if parameter in each.values]
        if len(rows) == 1 and self._world.alone:
            return rows[0].as_in_context(context)
        if rows:  # a new array, which the ranks add up in place
            return mx.nd.add_n(*(each.as_in_context(context) for each in rows))
        size = int(np.prod(parameter.shape))
        return mx.nd.zeros((tasks, size), ctx=context, dtype=parameter.dtype)


class GradientBalancer(compared.GradientBalancer):
    """Weighs the gradients of tasks where the graph of net and losses is cut."""

    of_features, of_parameters = FeatureGradients, ParameterGradients

    def differentiate(
        self, result: StepResult, state: RunState, scale: float = 1.0, timer: Timer = untimed
    ) -> None:
        result.differentiate()
        with timer("balance"):
            self._combine(result, result, state)
