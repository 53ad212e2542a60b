"""Weighs the losses of tasks on the device."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...balance import Balance, State
from ...balance.answers import Shape, ask
from ...balance.protocol import Measured, measured_losses
from ...balance.tasks import Places, Tasks
from ...balance.weighing import weigh_losses
from ...distributed import World
from ...errors import SpecError
from ...protocols import Array, Context, Numbers
from ...state import RunState
from ..compat import mx
from ..data.arrays import new_array
from ..step.cached_graph import as_list
from ..step.result import StepResult
from .present import tasks_with_labels

Function = Callable[..., "tuple[Any, list[Any]]"]
"""``function(measured, rows, *losses) -> weights, rows``"""

Graph = Callable[[Sequence[Any]], "list[Array]"]
"""Takes the rows, the epoch and the arrays of losses; returns the new rows, then head gradients."""


def weighing_graph(
    function: Function,
    rows: int,
    tasks: int,
    losses: Sequence[Places],
    heads: Sequence[tuple[Sequence[int], str]],
) -> Graph:
    """Return a function on losses that runs as one operator.

    What is kept between batches are `rows` of a single array, because each further input or output costs
    time. `losses` are, for each argument of `function` that holds losses, the tasks of the elements of its
    arrays; `measured` has the first of them. `heads` are the tasks of the head gradients' elements, with the
    dtypes; they get the weights that the function returns.
    """
    kept = mx.sym.var("rows", shape=(rows, tasks))
    epoch = mx.sym.var("epoch", shape=(tasks,))
    inputs = [
        [mx.sym.var(f"losses{i}_{j}", shape=(len(places),)) for j, places in enumerate(each)]
        for i, each in enumerate(losses)
    ]
    before = list(mx.sym.split(kept, num_outputs=rows, axis=0, squeeze_axis=True))
    by_task = [_by_task(*pair, tasks) for pair in zip(inputs, losses)]
    weights, after = function(measured_losses(mx.sym, tasks, by_task[0], epoch), before, *by_task)
    outputs = [mx.sym.stack(*after, axis=0)]
    for places, dtype in heads:
        of_tasks = [_element(weights, task) for task in places]
        outputs.append(mx.sym.cast(mx.sym.concat(*of_tasks, dim=0), dtype))
    symbol = mx.sym.Group(outputs)
    order = ["rows", "epoch", *(each.name for group in inputs for each in group)]
    used = [order.index(name) for name in symbol.list_inputs()]
    operator = mx.nd.CachedOp(symbol, PLANNED)
    return lambda given: as_list(operator(*[given[number] for number in used]))


def shape_of(value: Any) -> tuple[int, ...] | None:
    """Return the shape of a value that was computed with ``measured.F``; None for any other value."""
    if not isinstance(value, mx.sym.Symbol):
        return None
    shapes = value.infer_shape_partial()[1]
    return shapes[0] if len(shapes) == 1 else None


def _by_task(arrays: Sequence[Any], places: Places, tasks: int) -> Any:
    """Return the tasks' losses, float64 of shape (tasks,), as sums of elements of the arrays."""
    vectors = [mx.sym.cast(array, "float64") for array in arrays]
    if len(places) == 1 and list(places[0]) == list(range(tasks)):
        return vectors[0]
    parts: list[list[Any]] = [[] for _ in range(tasks)]
    for vector, each in zip(vectors, places):
        for number, task in enumerate(each):
            parts[task].append(_element(vector, number))
    zeros = mx.sym.zeros((1,), dtype="float64")  # of a task without a loss in this process
    return mx.sym.concat(*(mx.sym.add_n(*each) if each else zeros for each in parts), dim=0)


def _element(vector: Any, number: int) -> Any:
    return mx.sym.slice_axis(vector, axis=0, begin=number, end=number + 1)


Keys = tuple[tuple[str, ...], ...]
"""For each array of losses, the names of the losses that its elements are."""

Losses = tuple[Sequence[Array], Keys | None]
"""Arrays of losses, and their names; None if a single array holds the losses of all tasks."""

PLANNED = (("static_alloc", True), ("static_shape", True), ("forward_bulk_size", 1000))
FIGURES = 2  # the first rows, which are added to the means of the weights


class DeviceMethod:
    """Runs a method on the device of `context`: a graph computes head gradients from each batch's losses.

    Raises SpecError if the method remembers anything other than arrays of shape (tasks,).
    """

    def __init__(self, method: Balance, tasks: Tasks, context: Context, world: World) -> None:
        self._method, self._tasks, self._context, self._world = method, tasks, context, world
        self._count = len(tasks.names)
        start = ask(method, "start", self._count)
        self._names = list(start)
        memory = self._checked(f"start({self._count})", start, np.shape)
        self._rows = self._new_rows([tasks.first_weights(method), *memory])
        self._graphs: dict[Any, Graph] = {}
        self._constants: dict[tuple[float, ...], Any] = {}  # which tasks have labels, on the device
        self._epoch: tuple[int, Any] = -1, None  # its index, and its array for each task
        self._measured: Losses = [], None

    @property
    def figures(self) -> Array:
        """The rows to add to the means of the weights, for the last batch, and further ones.

        They are each task's weight, and 1 if the task took part in the batch; the weight is 0 if it did not.
        Then come each task's last weight, and what the method remembers.
        """
        return self._rows

    def weigh(self, result: StepResult, state: RunState) -> list[Array]:
        """Compute new weights; return the head gradients of a batch's objectives."""
        if self._epoch[0] != state.epoch:
            self._epoch = state.epoch, self._new(np.full(self._count, float(state.epoch)))
        self._measured = self._losses(result)
        return self._run(self._weigh, [self._measured], result)

    def keep(self, result: StepResult) -> list[Array]:
        """Return the head gradients of a batch's objectives, with each task's last weight."""
        return self._run(self._keep, [self._with_labels(result)], result)

    def look_back(self, again: StepResult) -> None:
        """Give the method the losses of the same batch, computed after the update."""
        self._run(self._look_back, [self._measured, self._losses(again)])

    def state(self) -> dict[str, Any]:
        """Return the weights and what the method remembers, for a checkpoint."""
        return {"rows": self._rows[FIGURES:]}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned."""
        self._rows = self._new_rows(state["rows"].asnumpy())

    def _new_rows(self, kept: Any) -> Any:
        """Return the rows that begin with those of the figures; `kept` are the others."""
        return self._new(np.vstack([np.zeros((FIGURES, self._count)), *kept]))

    def _new(self, values: Numbers) -> Array:
        return new_array(values, self._context, "float64")

    def _weigh(self, measured: Measured, rows: list[Any], losses: Any) -> tuple[Any, list[Any]]:
        _, _, last, *memory = rows
        counted = len(self._tasks.weighed)
        weights, new = weigh_losses(self._method, measured, last, self._named(memory), shape_of, counted)
        there = losses != 0
        last = measured.F.where(measured.present == 1, weights, last)
        return weights, [weights * there, there, last, *self._checked("weights", new, shape_of)]

    def _keep(self, measured: Measured, rows: list[Any], there: Any) -> tuple[Any, list[Any]]:
        _, _, last, *memory = rows
        return last, [last * there, there, last, *memory]

    def _look_back(self, measured: Measured, rows: list[Any], _: Any, after: Any) -> tuple[Any, list[Any]]:
        weights, there, last, *memory = rows
        new = ask(self._method, "after_update", measured, after, self._named(memory))
        return last, [weights, there, last, *self._checked("after_update", new, shape_of)]

    def _named(self, memory: Sequence[Any]) -> State:
        return dict(zip(self._names, memory))

    def _losses(self, result: StepResult) -> Losses:
        """Return arrays of losses on the device, and the losses' names."""
        if self._method.needs == "nothing":
            return self._with_labels(result)
        if not self._world.alone:
            return [self._new(self._tasks.read_losses(result, self._world))], None
        arrays = result.objectives
        if result.batch.contexts != [self._context]:
            arrays = [array.as_in_context(self._context) for array in arrays]
        return arrays, tuple(result.objective_losses)

    def _with_labels(self, result: StepResult) -> Losses:
        """Return 1 for each task that has labels in the batch, else 0, in the form of losses."""
        there = tasks_with_labels(result, self._tasks)
        if isinstance(there, np.ndarray):
            key = tuple(there.tolist())
            if key not in self._constants:
                self._constants[key] = self._new(there)
            return [self._constants[key]], None
        return [there.as_in_context(self._context)], None

    def _run(
        self, function: Function, losses: Sequence[Losses], result: StepResult | None = None
    ) -> list[Array]:
        """Run a function as one operator, and replace the rows; return the head gradients for a result."""
        heads = () if result is None else (tuple(result.objective_losses), *result.objective_dtypes())
        key = function.__name__, *[keys for _, keys in losses], heads
        graph = self._graphs.get(key)
        if graph is None:
            graph = self._graphs[key] = self._new_graph(function, losses, heads)
        inputs = [self._rows, self._epoch[1]]
        for arrays, _ in losses:
            inputs += arrays
        outputs = graph(inputs)
        self._rows = outputs.pop(0)
        if result is None or result.batch.contexts == [self._context]:
            return outputs
        return [each.as_in_context(to.context) for each, to in zip(outputs, result.objectives)]

    def _new_graph(self, function: Function, losses: Sequence[Losses], heads: Any) -> Graph:
        all_tasks = (tuple(range(self._count)),)
        taken = [all_tasks if keys is None else self._tasks.places(keys) for _, keys in losses]
        keys, *dtypes = heads or ((),)
        pairs = list(zip(self._tasks.places(keys), dtypes))
        rows = FIGURES + 1 + len(self._names)
        return weighing_graph(function, rows, self._count, taken, pairs)

    def _checked(self, function: str, memory: State, shape_of: Shape) -> list[Any]:
        """Return what a function of the method returned to be remembered, in order."""
        for name, value in memory.items():
            shape = shape_of(value)
            if shape != (self._count,):
                found = ", which measured.F did not compute" if shape is None else f" of shape {shape}"
                raise SpecError(
                    f"balance: {type(self._method).__name__}.{function} returns {name}{found}; on the "
                    f"device, a method remembers arrays of shape ({self._count},); with on_device = False, "
                    "anything"
                )
        return [memory[name] for name in self._names]
