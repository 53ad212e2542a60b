"""The operations on an engine's arrays that methods of balancing need."""

from __future__ import annotations

from typing import Any, Callable, Mapping, Protocol

from ...distributed import World
from ...protocols import Array, Context
from ..compat import mx
from ..data.arrays import new_array
from ..metrics.accumulators import Accumulator
from ..metrics.means import Sums
from .parameter_gradients import ParameterGradients
from .task_gradients import FeatureGradients, TaskGradients

Operator = Callable[..., Any]
"""A function of arrays; returns a list of arrays, or a single array."""

PLANNED = (("static_alloc", True), ("static_shape", True), ("forward_bulk_size", 1000))


class Arrays(Protocol):
    """The arrays of an engine.

    `exact_dropout` says whether Dropout is correct if a forward pass is followed by several backward passes.
    """

    exact_dropout: bool

    def new(self, values: Any) -> Any:
        """Return numbers as a float64 array on the device where methods compute."""

    def saved(self, array: Any) -> Array:
        """Return an array as an NDArray, for a checkpoint."""

    def operator(self, symbol: Any) -> Operator:
        """Return a function that computes a symbol's outputs from arrays, in the order of its inputs."""

    def sums(self) -> Sums:
        """Return an object that adds up arrays without waiting for them."""

    def task_gradients(self, on: str, parameters: Mapping[str, Any], world: World) -> TaskGradients:
        """Return an object that compares and combines the tasks' gradients of all ranks.

        `on` is the option of a method: "features", "parameters", or a pattern of parameter names.
        """


class MXNetArrays:
    """NDArrays, on the device of `context`."""

    exact_dropout = False

    def __init__(self, context: Context) -> None:
        self._context = context

    def new(self, values: Any) -> Array:
        """Return numbers as an NDArray."""
        return new_array(values, self._context, "float64")

    def saved(self, array: Array) -> Array:
        """Return the array."""
        return array

    def operator(self, symbol: Any) -> Operator:
        """Return a planned graph, which costs as much as one operator."""
        return mx.nd.CachedOp(symbol, PLANNED)

    def sums(self) -> Accumulator:
        """Return an accumulator."""
        return Accumulator(self._context)

    def task_gradients(self, on: str, parameters: Mapping[str, Any], world: World) -> TaskGradients:
        """Return an object that compares gradients that MXNet computes."""
        if on == "features":
            return FeatureGradients(world)
        return ParameterGradients(None if on == "parameters" else on, parameters, world)
