"""Run a method of balancing on the device, so that nothing waits for the losses."""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence

import numpy as np

from ...balance import Balance, State
from ...balance.answers import ask_after_update, ask_start, check_memory
from ...balance.measured import Measured
from ...balance.weighing import weigh_losses
from ...distributed import World
from ...errors import SpecError
from ...protocols import Array, Context
from ...state import RunState
from ..execution.result import StepResult
from ..user_code import user_code
from .arrays import Arrays
from .tasks import Tasks
from .weighing_graph import Function, WeighingGraph, shape_of

Keys = tuple[tuple[str, ...], ...]
"""For each array of losses, the names of the losses that its elements are."""

Losses = tuple[Sequence[Array], Optional[Keys]]
"""Arrays of losses, and their names; None if a single array holds the losses of all tasks."""


class DeviceMethod:
    """Runs a method on the device of `context`: a graph computes head gradients from each batch's losses.

    Raises SpecError if the method remembers anything other than arrays of shape (tasks,).
    """

    def __init__(self, method: Balance, tasks: Tasks, context: Context, world: World, arrays: Arrays) -> None:
        self._method, self._tasks, self._context, self._world = method, tasks, context, world
        self._arrays = arrays
        self._count = len(tasks.names)
        start = {name: np.asarray(value) for name, value in ask_start(method, self._count).items()}
        self._check_shapes(f"start({self._count})", {name: value.shape for name, value in start.items()})
        self._names = list(start)
        self._rows = arrays.new(np.stack([np.ones(self._count), *start.values()]))
        self._graphs: dict[Any, WeighingGraph] = {}
        self._epoch: tuple[int, Any] = -1, None  # its index, and its array for each task
        self._measured: Losses = [], None

    @property
    def figures(self) -> Array:
        """The last weights in the first row, then what the method remembers."""
        return self._rows

    def weigh(self, result: StepResult, state: RunState) -> list[Array]:
        """Compute new weights; return the head gradients of a batch's objectives."""
        if self._epoch[0] != state.epoch:
            self._epoch = state.epoch, self._arrays.new(np.full(self._count, float(state.epoch)))
        self._measured = self._losses(result)
        return self._run(self._weigh, [self._measured], result)

    def keep(self, result: StepResult) -> list[Array]:
        """Return the head gradients of a batch's objectives, with the last weights."""
        return self._run(None, [], result) if result.objectives else []

    def look_back(self, again: StepResult) -> None:
        """Give the method the losses of the same batch, computed after the update."""
        self._run(self._look_back, [self._measured, self._losses(again)])

    def state(self) -> dict[str, Any]:
        """Return the weights and what the method remembers, for a checkpoint."""
        return {"rows": self._arrays.saved(self._rows)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned."""
        if "rows" in state:
            self._rows = self._arrays.loaded(state["rows"])
        else:  # older checkpoints have an array for each
            saved = [state["weights"], *(state["memory"][name] for name in self._names)]
            self._rows = self._arrays.new(np.stack([array.asnumpy() for array in saved]))

    def _weigh(self, measured: Measured, weights: Any, memory: State) -> tuple[Any, State]:
        weights, memory = weigh_losses(self._method, measured, weights, memory, shape_of)
        return weights, self._checked("weights", memory)

    def _look_back(self, measured: Measured, weights: Any, memory: State, after: Any) -> tuple[Any, State]:
        memory = ask_after_update(self._method, measured, after, memory)
        return weights, self._checked("after_update", memory)

    def _losses(self, result: StepResult) -> Losses:
        """Return arrays of losses on the device, and the losses' names."""
        if self._method.needs == "nothing":
            return [self._arrays.new(np.ones(self._count))], None
        if not self._world.alone:
            return [self._arrays.new(self._tasks.read_losses(result, self._world))], None
        arrays = result.objectives
        if result.batch.contexts != [self._context]:
            arrays = [array.as_in_context(self._context) for array in arrays]
        return arrays, tuple(result.objective_losses)

    def _run(
        self, function: Function | None, losses: Sequence[Losses], result: StepResult | None = None
    ) -> list[Array]:
        """Run a function as one operator, and replace the rows; return the head gradients for a result."""
        heads = () if result is None else (tuple(result.objective_losses), *result.objective_dtypes())
        key = None if function is None else function.__name__, *[keys for _, keys in losses], heads
        graph = self._graphs.get(key)
        if graph is None:
            graph = self._graphs[key] = self._new_graph(function, losses, heads)
        inputs = [self._rows, self._epoch[1]]
        for arrays, _ in losses:
            inputs += arrays
        outputs = graph(inputs)
        if function is not None:
            self._rows = outputs.pop(0)
        if result is None or result.batch.contexts == [self._context]:
            return outputs
        return [each.as_in_context(to.context) for each, to in zip(outputs, result.objectives)]

    def _new_graph(self, function: Function | None, losses: Sequence[Losses], heads: Any) -> WeighingGraph:
        all_tasks = (tuple(range(self._count)),)
        taken = [all_tasks if keys is None else self._tasks.places(keys) for _, keys in losses]
        keys, *dtypes = heads or ((),)
        pairs = list(zip(self._tasks.places(keys), dtypes))
        return WeighingGraph(self._arrays, function, self._names, self._count, taken, pairs)

    def _checked(self, function: str, memory: State) -> State:
        check_memory(self._method, function, memory, self._names, self._count)
        with user_code(lambda: f"balance: {type(self._method).__name__}.{function}"):
            shapes = {name: shape_of(value) for name, value in memory.items()}
        self._check_shapes(function, shapes)
        return memory

    def _check_shapes(self, function: str, shapes: Mapping[str, tuple[int, ...] | None]) -> None:
        for name, shape in shapes.items():
            if shape != (self._count,):
                found = ", which measured.F did not compute" if shape is None else f" of shape {shape}"
                raise SpecError(
                    f"balance: {type(self._method).__name__}.{function} returns {name}{found}; on the "
                    f"device, a method remembers arrays of shape ({self._count},); with on_device = False, "
                    "anything"
                )
