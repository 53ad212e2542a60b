"""Weighs the gradients of tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from functools import cache
from typing import Any

import numpy as np

from ...balance import balancers
from ...balance.balancers import ChosenParameters, Products, Timer
from ...balance.tasks import Tasks
from ...distributed import World
from ...handlers.state import RunState
from ...utils.protocols import Array, Numbers
from ..compat import mx
from ..data.arrays import InPlaceCall, new_array
from ..optim.preserve_state import kept_statistics
from ..ranks.collectives import all_reduce
from ..step.split_graph import SharedFeatures, measuring
from ..step.stage import StepResult
from .losses import task_losses


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


class ParameterRows:
    """The tasks' gradients of the body's parameters on one device, as rows of an array for each.

    `values` are the arrays of rows, of shape (tasks, size), by parameter; batches rewrite them, but for the
    rows of tasks that reach none of these parameters, which stay 0.
    """

    def __init__(self, features: SharedFeatures, tasks: int) -> None:
        self._context = features.arrays[0].context
        self._gradients = {each: each.grad(self._context) for each in features.parameters}
        self.values = {
            each: mx.nd.zeros((tasks, g.size), ctx=self._context, dtype=g.dtype)
            for each, g in self._gradients.items()
        }
        pairs = [(g, self.values[each]) for each, g in self._gradients.items()]
        self._takes = [
            [InPlaceCall("_copyto", [g], [rows[task].reshape(g.shape)]) for g, rows in pairs]
            for task in range(tasks)
        ]
        self._flat = [g.reshape((1, -1)) for g, _ in pairs]
        self._combine = _combination(tuple([np.dtype(g.dtype).name for g, _ in pairs]))
        self._added: list[tuple[Array, Array]] = []  # gradients to which a batch's are added, and copies

    def suit(self, features: SharedFeatures) -> bool:
        """Whether these are the gradients of the same parameters, whose arrays may have been replaced."""
        return [*self._gradients] == features.parameters and all(
            each.grad(self._context) is gradient for each, gradient in self._gradients.items()
        )

    def measure(self, features: SharedFeatures, every: Sequence[Any]) -> None:
        """Run a backward pass for each task.

        MXNet updates running statistics, which are among `every` parameter of the net, in the backward pass;
        only the first pass may update them.
        """
        present = sorted({task for each in features.rows for task in each.tasks})
        adds = [g for each, g in self._gradients.items() if each.grad_req == "add"]
        self._added = [(gradient, gradient.copy()) for gradient in adds]
        with ExitStack() as stack:
            for task in present:
                for gradient in adds:
                    mx.nd.zeros_like(gradient, out=gradient)
                features.backward_of(task, retains=task != present[-1])
                for copy in self._takes[task]:
                    copy()
                if task == present[0]:
                    stack.enter_context(kept_statistics(every))

    def combine(self, weights: Numbers) -> None:
        """Give the parameters the weighted sum of the tasks' gradients."""
        factors = new_array(weights[np.newaxis], self._context, "float64")
        self._combine(factors, *self.values.values(), out=self._flat)
        for gradient, before in self._added:
            gradient += before


@cache
def _combination(dtypes: tuple[str, ...]) -> Any:
    """Return an operator that multiplies a vector by rows of these dtypes."""
    factors = mx.sym.var("factors")
    rows = [mx.sym.var(f"rows{number}") for number in range(len(dtypes))]
    sums = [mx.sym.dot(mx.sym.cast(factors, dtype), each) for dtype, each in zip(dtypes, rows)]
    return mx.nd.CachedOp(mx.sym.Group(sums), (("static_alloc", True),))


class ParameterGradients(FeatureGradients):
    """Compares exact gradients of parameters, at the cost of a backward pass for each task.

    The compared parameters are the `chosen` ones that tasks share. With several ranks, the compared rows are
    summed over the ranks.
    """

    def __init__(self, chosen: ChosenParameters, parameters: Mapping[str, Any], world: World) -> None:
        self._chosen, self._world, self._parameters = chosen, world, dict(parameters)
        self._names = {parameter: name for name, parameter in parameters.items()}
        self._by_device: dict[Any, ParameterRows] = {}
        self._rows: list[ParameterRows] = []  # by device, in the batches that are measured

    def measure(self, result: StepResult, tasks: Tasks) -> tuple[Numbers, Products]:
        """Return the losses, and the Gramian of the gradients summed over all devices and ranks."""
        count, every = len(tasks.names), list(self._parameters.values())
        self._rows = []
        for features in result.features:
            context = features.arrays[0].context
            if context not in self._by_device or not self._by_device[context].suit(features):
                self._by_device[context] = ParameterRows(features, count)
            self._rows.append(self._by_device[context])
            self._rows[-1].measure(features, every)
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


class GradientBalancer(balancers.GradientBalancer):
    """Weighs the gradients of tasks where the graph of net and losses is cut."""

    of_features, of_parameters = FeatureGradients, ParameterGradients

    def differentiate(
        self, result: StepResult, state: RunState, scale: float = 1.0, timer: Timer = nullcontext
    ) -> None:
        if result.objectives:  # else this process has no samples
            result.differentiate()
        with timer("balance"):
            self._combine(result, result, state)
