"""Compare the tasks' gradients with respect to the parameters that they share."""

from __future__ import annotations

import copy
from typing import Any, Mapping, Sequence

import numpy as np

from ...distributed import ALONE, World
from ...protocols import Array, Numbers
from ..compat import mx
from ..data.new_array import new_array
from ..distributed.collectives import all_reduce
from ..execution.result import StepResult
from ..execution.shared_features import Rows, SharedFeatures
from .chosen_parameters import ChosenParameters
from .task_gradients import summed
from .tasks import Tasks


class ParameterGradients:
    """Compares exact gradients of parameters, at the cost of a backward pass for each task.

    The compared parameters are the shared ones whose names match `pattern`, or all shared ones if it is
    None. If gradients are added up over several batches, so are those of each task. With several ranks, the
    compared rows are summed over the ranks. Raises SpecError if a pattern matches none.
    """

    repeats = True

    def __init__(self, pattern: str | None, parameters: Mapping[str, Any], world: World) -> None:
        self._world, self._parameters = world, dict(parameters)
        self._names = {parameter: name for name, parameter in parameters.items()}
        self._chosen = ChosenParameters(pattern, parameters, world)
        self._rows: list[Rows] = []  # by device, in the batches that are measured
        self._losses: list[tuple[list[str], Array]] = []  # of the batches whose rows are added
        self.waits = False

    def measure(self, result: StepResult, tasks: Tasks) -> tuple[Numbers, Numbers]:
        """Return the losses and the Gramian of the gradients summed over all devices and ranks."""
        self._rows = []
        self._add_rows(result.features, tasks)
        return self._joined(tasks.read_losses(result, ALONE))

    def combine(self, features: Sequence[SharedFeatures], weights: Numbers) -> None:
        """Combine the rows; if the batch was not measured, pass the weighted sum back through the body."""
        if not self._rows:
            for each in features:
                each.backward(weights)
        self.combine_added(weights)

    def add(self, result: StepResult, tasks: Tasks, weights: Numbers) -> None:
        """Add the tasks' gradients and losses of a batch to those that wait, without reading them.

        The parameters get the sum of what waits, weighted by the last `weights`.
        """
        self.waits = True
        self._add_rows(result.features, tasks)
        objectives: Sequence[Any] = result.objectives
        self._losses += [
            (list(keys), objective.detach()) for keys, objective in zip(result.objective_losses, objectives)
        ]
        self._set(weights)

    def measure_added(self, tasks: Tasks, batches: int) -> tuple[Numbers, Numbers]:
        """Return the losses and the Gramian of what all ranks added, as means over `batches`."""
        losses = np.zeros(len(tasks.names))
        for keys, objective in self._losses:
            for key, value in zip(keys, objective.asnumpy().tolist()):
                losses[tasks.of_loss[key]] += value
        losses, gramian = self._joined(losses)
        return losses / batches, gramian / batches**2

    def combine_added(self, weights: Numbers) -> Mapping[str, Any]:
        """Give the parameters the weighted sums of the rows; return an empty dict."""
        self._set(weights)
        self.forget()
        return {}

    def forget(self) -> None:
        """Discard what waits, to begin again."""
        self.waits = False
        self._rows, self._losses = [], []

    def fork(self) -> ParameterGradients:
        """Return a copy that does not change this one."""
        fork = copy.copy(self)
        fork._rows = [{each: row.copy() for each, row in rows.items()} for rows in self._rows]
        fork._losses = list(self._losses)
        return fork

    def state(self) -> dict[str, Any]:
        """Return what waits, for a checkpoint."""
        rows = [{self._names[each]: row for each, row in rows.items()} for rows in self._rows]
        return {"waits": self.waits, "rows": rows, "losses": [list(each) for each in self._losses]}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned, of either engine."""
        self.waits = state["waits"]
        self._rows = [
            {
                self._parameters[name]: row.as_in_context(self._parameters[name].list_ctx()[device])
                for name, row in rows.items()
            }
            for device, rows in enumerate(state["rows"])
        ]
        self._losses = [(keys, objective) for keys, objective in state["losses"]]

    def _add_rows(self, features: Sequence[SharedFeatures], tasks: Tasks) -> None:
        for device, each in enumerate(features):
            if device == len(self._rows):
                self._rows.append({})
            before, every = self._rows[device], self._parameters.values()
            self._rows[device] = each.parameter_rows(len(tasks.names), every, before)

    def _set(self, weights: Numbers) -> None:
        for rows in self._rows:
            for parameter, row in rows.items():
                gradient = parameter.grad(row.context)
                factors = new_array(weights[np.newaxis], row.context, row.dtype)
                mx.nd.dot(factors, row).reshape(gradient.shape).copyto(gradient)

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
