"""A method of balancing that computes on the device, so that nothing waits for the losses."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

import numpy as np

from ...balance import Balance, State
from ...balance.measured import Measured
from ...balance.weighing import weigh_losses
from ...distributed import World
from ...errors import SpecError
from ...protocols import Array, Context
from ...state import RunState
from ..execution.result import StepResult
from .arrays import Arrays
from .tasks import Places, Tasks
from .weighing_graph import Function, WeighingGraph

Losses = tuple[Sequence[Array], Places]
"""Arrays of losses, and the tasks of their elements."""


class DeviceMethod:
    """Runs a method on the device of `context`: a graph for each batch, from losses to head gradients.

    Raises SpecError if the method remembers something else than arrays of shape (tasks,).
    """

    def __init__(self, method: Balance, tasks: Tasks, context: Context, world: World, arrays: Arrays) -> None:
        self._method, self._tasks, self._context, self._world = method, tasks, context, world
        self._arrays = arrays
        self._count = len(tasks.names)
        start = {name: np.asarray(value) for name, value in method.start(self._count).items()}
        _check_shapes(method, start, self._count)
        self._names = list(start)
        self._rows = arrays.new(np.stack([np.ones(self._count), *start.values()]))
        self._graphs: dict[Any, WeighingGraph] = {}
        self._epoch: tuple[int, Any] = -1, None  # its index, and its array
        self._measured: Losses = [], ()

    @property
    def figures(self) -> Array:
        """The last weights, and what follows them."""
        return self._rows

    def weigh(self, result: StepResult, state: RunState) -> list[Array]:
        """Compute new weights; return the head gradients of a batch's objectives."""
        self._measured = self._losses(result)
        return self._run(self._weigh, [self._measured], result, self._epoch_array(state.epoch))

    def keep(self, result: StepResult) -> list[Array]:
        """Return the head gradients of a batch's objectives for the last weights."""
        return self._run(None, [], result) if result.objectives else []

    def look_back(self, again: StepResult) -> None:
        """Let the method see the losses of the same batch after the update."""
        self._run(self._look_back, [self._measured, self._losses(again)], epoch=self._epoch[1])

    def state(self) -> dict[str, Any]:
        """Return weights and memory, for a checkpoint."""
        return {"rows": self._arrays.saved(self._rows)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned."""
        self._rows = self._arrays.loaded(state["rows"])

    def _weigh(self, measured: Measured, weights: Any, memory: State) -> tuple[Any, State]:
        return weigh_losses(self._method, measured, weights, memory)

    def _look_back(self, measured: Measured, weights: Any, memory: State, after: Any) -> tuple[Any, State]:
        method: Any = self._method
        return weights, method.after_update(measured, after, memory)

    def _losses(self, result: StepResult) -> Losses:
        """Return arrays of losses on the device, and the tasks of their elements."""
        if self._method.needs == "nothing":
            return [self._arrays.new(np.ones(self._count))], (tuple(range(self._count)),)
        if not self._world.alone:
            losses = self._tasks.read_losses(result, self._world)
            return [self._arrays.new(losses)], (tuple(range(self._count)),)
        arrays, places = result.objectives, self._tasks.places(result.objective_losses)
        if result.batch.contexts != [self._context]:
            arrays = [array.as_in_context(self._context) for array in arrays]
        return arrays, places

    def _run(
        self,
        function: Function | None,
        losses: Sequence[Losses],
        result: StepResult | None = None,
        epoch: Array | None = None,
    ) -> list[Array]:
        """Run a function as one operator, which replaces the rows; return the head gradients of a result."""
        objectives = [] if result is None else result.objectives
        places = () if result is None else self._tasks.places(result.objective_losses)
        heads = [] if result is None else list(zip(places, result.objective_dtypes()))
        taken = [places for _, places in losses]
        key = None if function is None else function.__name__, *taken, *heads
        if key not in self._graphs:
            self._graphs[key] = WeighingGraph(self._arrays, function, self._names, self._count, taken, heads)
        outputs = self._graphs[key](self._rows, epoch, [array for arrays, _ in losses for array in arrays])
        if function is not None:
            self._rows, *outputs = outputs
        if result is None or result.batch.contexts == [self._context]:
            return outputs
        return [each.as_in_context(to.context) for each, to in zip(outputs, objectives)]

    def _epoch_array(self, epoch: int) -> Array:
        """Return the index of the epoch, once for each task; the same array in each batch of the epoch."""
        if self._epoch[0] != epoch:
            self._epoch = epoch, self._arrays.new(np.full(self._count, float(epoch)))
        return self._epoch[1]


def _check_shapes(method: Any, start: Mapping[str, np.ndarray[Any, Any]], tasks: int) -> None:
    for name, value in start.items():
        if value.shape != (tasks,):
            raise SpecError(
                f"balance: {type(method).__name__}.start({tasks}) returns {name} of shape {value.shape}; on "
                f"the device, a method remembers arrays of shape ({tasks},); with on_device = False, anything"
            )
