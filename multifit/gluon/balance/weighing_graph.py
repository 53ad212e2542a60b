"""Run each computation of a method of balancing on a device as one operator."""

from __future__ import annotations

from typing import Any, Callable, Sequence

from ...balance.protocol import measured_losses
from ...protocols import Array
from ..compat import mx
from ..execution.cached_graph import as_list
from .arrays import Arrays
from .tasks import Places

Function = Callable[..., "tuple[Any, list[Any]]"]
"""``function(measured, rows, *losses) -> weights, rows``"""


class WeighingGraph:
    """Runs a function on losses as one operator, and returns head gradients.

    What is kept between batches are `rows` of a single array, because each further input or output costs
    time. `losses` are, for each argument of `function` that holds losses, the tasks of the elements of its
    arrays; `measured` has the first of them. `heads` are the tasks of the head gradients' elements, with the
    dtypes; they get the weights that the function returns.
    """

    def __init__(
        self,
        arrays: Arrays,
        function: Function,
        rows: int,
        tasks: int,
        losses: Sequence[Places],
        heads: Sequence[tuple[Sequence[int], str]],
    ) -> None:
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
        self._used = [order.index(name) for name in symbol.list_inputs()]
        self._operator = arrays.operator(symbol)

    def __call__(self, given: Sequence[Any]) -> list[Array]:
        """Return the new rows, then the head gradients.

        `given` are the rows, the epoch and the arrays of losses.
        """
        return as_list(self._operator(*[given[number] for number in self._used]))


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
