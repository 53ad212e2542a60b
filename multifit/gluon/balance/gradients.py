"""Weighs the gradients of tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...balance import GramianMethod, compared
from ...balance.compared import ChosenParameters, summed
from ...balance.tasks import Tasks
from ...distributed import ALONE, World
from ...engines import Timer, untimed
from ...protocols import Array, Numbers
from ...spec import TaskSpec
from ...state import RunState
from ..compat import mx
from ..metrics.sums import Accumulator
from ..ranks.collectives import all_reduce
from ..step.loss_graph import APART
from ..step.loss_separation import LossSeparation
from ..step.parameter_rows import ParameterRows
from ..step.result import StepResult
from ..step.split_graph import measuring
from .present import labelled_rows


class FeatureGradients:
    """Compares the gradients with respect to features; there is one backward pass through the body."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.sharing: set[tuple[int, ...]] = set()  # the tasks that take the same array of features

    def measure(self, result: StepResult, tasks: Tasks) -> tuple[Numbers, Numbers]:
        """Return the losses and the Gramian, each summed over devices and ranks."""
        count, one_device = len(tasks.names), len(result.features) == 1
        gramian = np.zeros((count, count))
        for features in result.features:
            gramians, values = features.measure(result.objectives if one_device else ())
            for of_tasks, products in gramians:
                pairs = ... if len(of_tasks) == count else np.ix_(of_tasks, of_tasks)
                gramian[pairs] += products
                self.sharing.add(tuple(of_tasks))
        losses = tasks.losses(result, values) if one_device else tasks.read_losses(result, ALONE)
        return summed(self._world, losses, gramian)

    def combine(self, result: StepResult, weights: Numbers) -> None:
        """Pass the weighted sum of the features' gradients back."""
        for each in result.features:
            each.backward(weights)


class ParameterGradients:
    """Compares exact gradients of parameters, at the cost of a backward pass for each task.

    The compared parameters are the shared ones whose names match `pattern`, or all shared ones if it is
    None. With several ranks, the compared rows are summed over the ranks. Raises SpecError if a pattern
    matches none.
    """

    def __init__(self, pattern: str | None, parameters: Mapping[str, Any], world: World) -> None:
        self._world, self._parameters = world, dict(parameters)
        self._names = {parameter: name for name, parameter in parameters.items()}
        self._chosen = ChosenParameters(pattern, parameters, world)
        self._kept: dict[Any, ParameterRows] = {}  # by device; batches rewrite them
        self._rows: list[ParameterRows] = []  # by device, in the batches that are measured

    def measure(self, result: StepResult, tasks: Tasks) -> tuple[Numbers, Numbers]:
        """Return the losses and the Gramian of the gradients summed over all devices and ranks."""
        count, every = len(tasks.names), list(self._parameters.values())
        self._rows = [each.parameter_rows(count, every, self._kept) for each in result.features]
        names = self._chosen.reached({self._names[each] for rows in self._rows for each in rows.values})
        compared = [self._of_devices(self._parameters[name], count) for name in names]
        all_reduce(self._world, compared)
        losses = [each.as_in_context(compared[0].context) for each in result.objectives]
        are_floats = tuple([np.dtype(each.dtype).kind == "f" for each in compared])
        values = measuring(len(losses), are_floats)(*compared, *losses).asnumpy()
        products, of_losses = np.split(values, [len(compared) * count * count])
        gramian = products.reshape(-1, count, count).sum(axis=0)  # on each rank, that of all ranks
        own = gramian if self._world.first else np.zeros_like(gramian)
        return summed(self._world, tasks.losses(result, of_losses.tolist()), own)

    def combine(self, result: StepResult, weights: Numbers) -> None:
        """Combine the rows; if the batch was not measured, pass the weighted sum back through the body."""
        for each in () if self._rows else result.features:
            each.backward(weights)
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
    """Runs a method that needs the inner products of the tasks' gradients.

    `parameters` are the net's parameters by structural name. Losses and inner products are those of all ranks
    of `world`.
    """

    def __init__(
        self, method: GramianMethod, spec: TaskSpec, world: World, parameters: Mapping[str, Any]
    ) -> None:
        on = getattr(method, "on", "parameters")
        # whether there is a backward pass through the body for each task
        self._repeats = on != "features"
        gradients: compared.TaskGradients = FeatureGradients(world)
        if self._repeats:
            gradients = ParameterGradients(None if on == "parameters" else on, parameters, world)
        super().__init__(method, spec, gradients, labelled_rows, Accumulator)

    def differentiate(
        self, result: StepResult, state: RunState, scale: float = 1.0, timer: Timer = untimed
    ) -> None:
        """Compute a batch's gradients; all ranks must call this. `scale` is for float16, which this lacks."""
        result.differentiate()
        with timer("balance"):
            self.combine(result, state)

    @property
    def separation(self) -> LossSeparation:
        """How a training stage must compute the objective."""
        tasks = {loss: self.tasks.of_loss[loss] for loss in self._weighed}
        return LossSeparation(APART, self.means, tasks, self._repeats)
