"""The arrays of MXNet that balancers read, add up and write."""

from collections.abc import Sequence

import numpy as np

from ...balance.balancer import Arrays
from ...balance.tasks import Tasks
from ...distributed import World
from ...utils.protocols import Array, Context, Numbers
from ..compat import mx
from ..data.arrays import new_array
from ..metrics.sums import Accumulator
from ..step.stage import StepResult


class HostArrays(Arrays):
    """Reads losses and labels of batches; `context` is the device of all rows, if it is known."""

    def __init__(self, world: World, context: Context | None = None) -> None:
        self._world, self._context = world, context

    def new_sums(self) -> Accumulator:
        return Accumulator(self._context)

    def labelled(self, result: StepResult, tasks: Tasks) -> Numbers | Array:
        sums = tasks.normalizers(result.scale)
        on_device = [each.context for each in sums if isinstance(each, mx.nd.NDArray)]
        if not on_device:
            return (np.array(sums) != 0).astype(np.float64)
        counted = (
            each if isinstance(each, mx.nd.NDArray) else new_array([each], on_device[0], "float64")
            for each in sums
        )
        return mx.nd.concat(*counted, dim=0) != 0

    def rows(self, weights: Numbers, present: Numbers | Array) -> Numbers | Array:
        if isinstance(present, np.ndarray):
            return super().rows(weights, present)
        return mx.nd.stack(new_array(weights, present.context, "float64") * present, present, axis=0)

    def losses(self, result: StepResult, tasks: Tasks) -> Numbers:
        return np.asarray(self._world.sum(task_losses(result, tasks)))

    def multiply(self, result: StepResult, tasks: Tasks, weights: Numbers) -> None:
        of_objectives = [weights[[tasks.of_loss[key] for key in keys]] for keys in result.objective_losses]
        result.head_gradients = result.like_objectives(of_objectives)


def task_losses(result: StepResult, tasks: Tasks, values: Sequence[float] | None = None) -> Numbers:
    """Return the tasks' losses in this process from the objectives' elements, read by default."""
    losses, rest = np.zeros(len(tasks.names)), iter(result.read_objectives() if values is None else values)
    for keys in result.objective_losses:
        for key in keys:
            losses[tasks.of_loss[key]] += next(rest)
    return losses
