"""The gradients of several tasks with respect to the same parameters."""

from collections.abc import Collection, Sequence
from functools import cache
from typing import Any

import numpy as np

from ...protocols import Array, Numbers
from ..compat import mx
from ..data.arrays import new_array
from ..in_place_call import InPlaceCall


class ParameterRows:
    """The tasks' gradients of parameters on one device, as rows of an array for each; batches rewrite them.

    `values` are the arrays of rows, of shape (tasks, size), by parameter.
    """

    def __init__(self, parameters: Sequence[Any], tasks: int, context: Any) -> None:
        gradients = [each.grad(context) for each in parameters]
        self._gradients = dict(zip(parameters, gradients))
        self.values = {
            each: mx.nd.zeros((tasks, g.size), ctx=context, dtype=g.dtype)
            for each, g in self._gradients.items()
        }
        arrays, self._context = list(self.values.values()), context
        self._takes = [
            [InPlaceCall("_copyto", [g], [rows[task].reshape(g.shape)]) for g, rows in zip(gradients, arrays)]
            for task in range(tasks)
        ]
        self._flat = [each.reshape((1, -1)) for each in gradients]
        self._combine = _combination(tuple([np.dtype(each.dtype).name for each in gradients]))
        self._added: list[tuple[Array, Array]] = []

    def holds(self, parameters: Sequence[Any]) -> bool:
        """Whether these are the gradients of `parameters`, whose arrays may have been replaced."""
        return [*self._gradients] == parameters and all(
            each.grad(self._context) is gradient for each, gradient in self._gradients.items()
        )

    def begin(self, absent: Collection[int]) -> None:
        """Set the rows of absent tasks to 0, and remember gradients to which those of a batch are added."""
        for task in absent:
            for rows in self.values.values():
                rows[task] = 0
        adds = [g for each, g in self._gradients.items() if each.grad_req == "add"]
        self._added = [(gradient, gradient.copy()) for gradient in adds]

    def clear_added(self) -> None:
        """Set gradients to 0 to which a backward pass adds."""
        for gradient, _ in self._added:
            mx.nd.zeros_like(gradient, out=gradient)

    def take(self, task: int) -> None:
        """Copy the gradients, which are those of a task."""
        for copy in self._takes[task]:
            copy()

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
