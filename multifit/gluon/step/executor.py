"""Runs small graphs on MXNet's Executors, which saves a third of the step of a net with two small heads.

An Executor is bound to its arrays once, whereas CachedOp and autograd are handed theirs in every batch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any

from ...utils.protocols import Array
from ..compat import mx
from ..data.arrays import InPlaceCall, size_in_bytes
from .cached_graph import CachedGraph

MAX_BYTES = 2**20  # of a batch, which copies in .06 ms
CONSTANTS = 0, 1  # a run's first two arrays, number of samples and weights: they are never written to

Gradients = Mapping[int, "tuple[Array, str]"]
"""By the position of an argument: the array for its gradient, and "write" or "add"."""


def suits(symbol: Any, arguments: Sequence[Array], data: Iterable[int]) -> bool:
    """Whether batches should run on an Executor; `data` are the positions of their arrays as arguments.

    They should not if the graph has running statistics, which would be written without the device's
    knowledge, as with planned operators; if a batch is large; or if a shape is unknown before the run.
    """
    if symbol.list_auxiliary_states() or sum(size_in_bytes(arguments[at]) for at in data) > MAX_BYTES:
        return False
    shapes = {name: array.shape for name, array in zip(symbol.list_inputs(), arguments)}
    inferred = symbol.get_internals().infer_shape_partial(**shapes)[1]
    return all(shape and min(shape) > 0 for shape in inferred)


class BatchArrays:
    """Arrays that belong to a graph, to which each batch is copied.

    `positions` says where the arrays of a batch are among `arguments`, by their number in a run. All other
    arguments are parameters, which are `bound` as they are. All batches have the same shapes and dtypes.
    """

    def __init__(self, arguments: Sequence[Array], positions: Mapping[int, int]) -> None:
        self.bound = list(arguments)
        for at in positions.values():
            self.bound[at] = arguments[at].copy()
        self._constants = {
            positions[number]: arguments[positions[number]] for number in CONSTANTS if number in positions
        }
        self._copies = {
            at: InPlaceCall("_copyto", [arguments[at]], [self.bound[at]]) for at in positions.values()
        }

    def take(self, arguments: Sequence[Array]) -> None:
        """Copy a batch."""
        for at, copy in self._copies.items():
            array = arguments[at]
            if at in self._constants:
                if array is self._constants[at]:
                    continue
                self._constants[at] = array
            copy.take(array)
            copy()


class BoundExecutor:
    """A graph bound to `arguments`; `gradients` says to which arrays their gradients are written.

    `outputs` are valid until the next run.
    """

    def __init__(self, symbol: Any, arguments: Sequence[Array], gradients: Gradients, context: Any) -> None:
        differentiated: list[Any] = [arguments[at] for at in gradients]
        self._parameters = [array for array in differentiated if array.grad is not None]
        names = symbol.list_inputs()
        self._executor = symbol.bind(
            context,
            args=list(arguments),
            args_grad={names[at]: array for at, (array, _) in gradients.items()},
            grad_req=[gradients[at][1] if at in gradients else "null" for at in range(len(names))],
        )
        self.outputs: list[Array] = self._executor.outputs
        self._zeros = [mx.nd.zeros_like(each) for each in self.outputs]

    def forward(self) -> None:
        """Compute the outputs."""
        self._executor.forward(is_train=True)

    def copied(self, but: Collection[int]) -> list[Array]:
        """Return the outputs as copies, which the next run does not change; those in `but` are not copied."""
        return [each if at in but else each.copy() for at, each in enumerate(self.outputs)]

    def backward(self, heads: Mapping[int, Array]) -> None:
        """Compute the gradients; `heads` are the head gradients of outputs by number, 0 if not given."""
        self._executor.backward([heads.get(at, zeros) for at, zeros in enumerate(self._zeros)])
        for array in self._parameters:
            array._fresh_grad = True


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
        positions, symbol = self._arguments.positions, self._cached_graph[1]
        if not (self._arguments.dense and suits(symbol, arguments, positions.values())):
            return None
        batch = BatchArrays(arguments, positions)
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
