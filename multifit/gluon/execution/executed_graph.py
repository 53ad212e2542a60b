"""A traced graph whose forward and backward passes run on MXNet's Executor if batches are small."""

from __future__ import annotations

from typing import Any, Callable, Hashable, Sequence

from ...protocols import Array
from ..compat import mx
from .bound_executor import BatchArrays, BoundExecutor, suits
from .cached_graph import CachedGraph


class ExecutedGraph(CachedGraph):
    """Runs the graph of a training batch without autograd, which for small nets takes longer than computing.

    Autograd keeps Python busy for .15 ms to record a batch and run its backward pass. An Executor takes
    .02 ms to start the same computation. It is bound to its arrays once: each batch is copied to its own
    input arrays, and it always writes to the same output arrays. Only the objective is differentiated; it is
    valid until the next run. All other outputs are copied. `objective` returns the objective's number among
    the outputs, once the graph is traced.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        parameters: Callable[[], Any],
        signature: Hashable,
        objective: Callable[[], int],
    ) -> None:
        super().__init__(function, parameters, signature)
        self._objective = objective

    def _new_step(self, arguments: Sequence[Array], context: Any) -> _Step | None:
        assert self._arguments is not None
        places, symbol = self._arguments.places, self._cached_graph[1]
        if not (self._arguments.dense and suits(symbol, arguments, places.values())):
            return None
        batch = BatchArrays(arguments, places)
        executor = BoundExecutor(symbol, batch.bound, self._arguments.gradients(arguments), context)
        return _Step(batch, executor, self._objective())


class _Step:
    """Runs batches of one signature on an Executor."""

    def __init__(self, batch: BatchArrays, executor: BoundExecutor, objective: int) -> None:
        self._batch, self._executor, self._objective = batch, executor, objective
        self._one = mx.nd.ones_like(executor.outputs[objective])

    def forward(self, arguments: Sequence[Array]) -> list[Array]:
        """Return the outputs for a batch."""
        self._batch.take(arguments)
        self._executor.forward()
        return self._executor.copied(but=(self._objective,))

    def backward(self, heads: Sequence[Array | None]) -> None:
        """Compute the parameters' gradients; the only head is the objective's gradient, None for 1."""
        (head,) = heads
        self._executor.backward({self._objective: self._one if head is None else head})
