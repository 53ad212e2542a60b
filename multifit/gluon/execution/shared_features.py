"""The arrays where the tasks of a batch branch, and each task's gradients with respect to them."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from typing import Any, Callable, Sequence

import numpy as np

from ...protocols import Array, Numbers
from ..compat import mx
from ..data.arrays import new_array
from ..in_place_call import InPlaceCall
from ..optim.preserve_state import kept_statistics

PLANNED = (("static_alloc", True), ("static_shape", True))
Rows = dict[Any, Array]
"""By parameter, the tasks' gradients on one device, of shape (tasks, size)."""


class TaskRows:
    """The gradients of some tasks with respect to an array, as rows of one array; each batch rewrites them.

    `tasks` are the tasks, in the order of the rows, and `shape` is that of a gradient. `values` is the array
    of rows, and `views` are the rows in the shape of a gradient.
    """

    def __init__(self, array: Array, tasks: Sequence[int]) -> None:
        def zeros(rows: int, columns: int) -> Array:
            return mx.nd.zeros((rows, columns), ctx=array.context, dtype=array.dtype)

        self.tasks, self.shape, count = list(tasks), array.shape, len(tasks)
        self.values = zeros(count, array.size)
        self.views = [self.values[number].reshape(self.shape) for number in range(count)]
        combined = zeros(1, array.size)
        self._head, self._last = combined.reshape(self.shape), [0.0] * count  # the last weights
        self._combine = InPlaceCall("dot", [zeros(1, count), self.values], [combined])
        self.is_float = np.dtype(array.dtype).kind == "f"

    def combined(self, weights: Numbers) -> Array:
        """Return the weighted sum of the gradients; `weights` are those of all tasks."""
        task_weights = weights[self.tasks]
        values = task_weights.tolist()
        if values != self._last:
            self._last = values
            self._combine.take(new_array(task_weights[np.newaxis], self.values.context, self.values.dtype))
        self._combine()
        return self._head


class SharedFeatures:
    """The arrays where the tasks branch, for one device and batch; `rows` are the tasks' gradients for each.

    After a backward pass of the losses, the rows hold each task's gradient. `parameters` are those of the
    body. ``pass_back(arrays, heads)`` computes their gradients; by default, autograd does.
    """

    def __init__(
        self,
        rows: Sequence[TaskRows],
        arrays: Sequence[Array],
        parameters: Sequence[Any],
        train_mode: bool = False,
        pass_back: Callable[[Sequence[Array], Sequence[Array]], None] = mx.autograd.backward,
    ) -> None:
        self.rows, self.arrays, self.parameters = rows, arrays, parameters
        self._train_mode = train_mode  # of the backward pass, on which the gradients of some layers depend
        self._pass_back = pass_back

    def measure(self, losses: Sequence[Array]) -> tuple[list[Any], list[float]]:
        """Return the tasks and the Gramian of each array's gradients, and the losses, all read in one go."""
        measure = _measure(len(losses), tuple([each.is_float for each in self.rows]))
        values = measure(*[each.values for each in self.rows], *losses).asnumpy()
        return split_measured(values, [each.tasks for each in self.rows])

    def backward(self, weights: Numbers) -> None:
        """Pass the weighted sum of the tasks' gradients back through the body."""
        self._pass_back(self.arrays, [each.combined(weights) for each in self.rows])

    def parameter_rows(self, tasks: int, parameters: Sequence[Any]) -> Rows:
        """Return for every parameter of the body the tasks' gradients, of shape (tasks, size).

        There is a backward pass for each task. MXNet updates running statistics, which are among
        `parameters`, in the backward pass; only the first pass may update them.
        """
        gradients = {each: each.grad(self.arrays[0].context) for each in self.parameters}
        rows = {
            each: mx.nd.zeros((tasks, g.size), ctx=g.context, dtype=g.dtype) for each, g in gradients.items()
        }
        pairs = [(row, gradients[each]) for each, row in rows.items()]
        adds = [g for each, g in gradients.items() if each.grad_req == "add"]  # as the user may have set
        present = sorted({task for each in self.rows for task in each.tasks})
        for task in present:
            heads = [
                each.views[each.tasks.index(task)] if task in each.tasks else mx.nd.zeros_like(array)
                for each, array in zip(self.rows, self.arrays)
            ]
            for gradient in adds:
                mx.nd.zeros_like(gradient, out=gradient)
            with nullcontext() if task == present[0] else kept_statistics(parameters):
                mx.autograd.backward(self.arrays, heads, task != present[-1], self._train_mode)
            for row, gradient in pairs:
                gradient.reshape((-1,)).copyto(row[task])
        return rows


def split_measured(
    values: Numbers, tasks: Sequence[Sequence[int]]
) -> tuple[list[tuple[Sequence[int], Numbers]], list[float]]:
    """Cut numbers that were read in one go: return each array's tasks with their Gramian, and the losses."""
    ends = np.cumsum([len(each) ** 2 for each in tasks])
    *gramians, losses = np.split(values, ends)
    return [(each, g.reshape(len(each), -1)) for each, g in zip(tasks, gramians)], losses.tolist()


@cache
def _measure(losses: int, are_floats: tuple[bool, ...]) -> Any:
    """Return an operator that computes Gramians of rows, and appends losses."""
    rows = [mx.sym.var(f"rows{number}") for number in range(len(are_floats))]
    exact = [each if is_float else mx.sym.cast(each, "float32") for each, is_float in zip(rows, are_floats)]
    gramians = [mx.sym.reshape(mx.sym.dot(each, each, transpose_b=True), shape=(-1,)) for each in exact]
    numbers = [*gramians, *(mx.sym.var(f"loss{number}") for number in range(losses))]
    return mx.nd.CachedOp(mx.sym.concat(*(mx.sym.cast(each, "float64") for each in numbers), dim=0), PLANNED)
