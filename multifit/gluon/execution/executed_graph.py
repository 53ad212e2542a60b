"""A traced graph whose forward and backward pass run on MXNet's Executor where batches are small."""

from __future__ import annotations

from typing import Any, Callable, Hashable, Mapping, Sequence

from ...protocols import Array
from ..compat import mx
from ..data.arrays import size_in_bytes
from ..in_place_call import InPlaceCall
from ..optim.gradients import set_fresh
from .cached_graph import CachedGraph
from .loss_graph import Backward

MAX_BYTES = 2**20  # of a batch, which copies in .06 ms
CONSTANTS = 2  # the first arrays of a run, the number of samples and weights, which nobody writes to


class ExecutedGraph(CachedGraph):
    """Runs the graph of a training batch without autograd, which takes small nets longer than computing.

    To record a batch and pass it back keeps Python busy for .15 ms. An Executor is bound to its arrays once,
    and takes .02 ms to start the same computation: it copies each batch to arrays of its own, and writes its
    results to the same arrays. Only the objective is differentiated; it holds until the next run. All other
    outputs are copied. `objective` returns its number among the outputs, once the graph is traced.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        parameters: Callable[[], Any],
        signature: Hashable,
        objective: Callable[[], int],
    ) -> None:
        super().__init__(function, parameters, signature)
        object.__setattr__(self, "_objective", objective)
        self._executors: dict[Any, _Executor | None] = {}  # by device and signature; None for large batches
        self._executor: _Executor | None = None

    @property
    def backward(self) -> Backward | None:
        """What passes the objective of the last run back; None if autograd has recorded it."""
        return None if self._executor is None else self._executor.backward

    def _call(self, arguments: list[Any], planned: Hashable, context: Any) -> list[Any]:
        self._executor = None
        if planned is not None and mx.autograd.is_recording() and mx.autograd.is_training():
            if (context, planned) not in self._executors:
                self._executors[context, planned] = self._new_executor(arguments, context)
            self._executor = self._executors[context, planned]
        if self._executor is None:
            return super()._call(arguments, planned, context)
        with mx.autograd.pause(train_mode=True):
            return self._executor.forward(arguments)

    def _new_executor(self, arguments: Sequence[Any], context: Any) -> _Executor | None:
        assert self._arguments is not None
        data, symbol = self._arguments.places, self._cached_graph[1]
        size = sum(size_in_bytes(arguments[at]) for at in data)
        # running statistics would be written without the engine's knowledge, as with planned operators
        if size > MAX_BYTES or symbol.list_auxiliary_states() or not self._arguments.dense:
            return None
        requests = {at: p.grad_req for at, (is_data, p) in enumerate(self._cached_op_args) if not is_data}
        with mx.autograd.pause():
            return _Executor(symbol, arguments, requests, data[:CONSTANTS], self._objective(), context)

    def _release_plans(self) -> None:
        super()._release_plans()
        self._executors.clear()


class _Executor:
    """A graph bound to arrays.

    `arguments` are those of a batch; `requests` are, for the places of parameters among them, what happens to
    their gradients. All others are data, of which the `constants` are never written to.
    """

    def __init__(
        self,
        symbol: Any,
        arguments: Sequence[Any],
        requests: Mapping[int, str],
        constants: Sequence[int],
        objective: int,
        context: Any,
    ) -> None:
        names, self._constants, self._last = symbol.list_inputs(), constants, list(arguments)
        bound = [each if at in requests else each.copy() for at, each in enumerate(arguments)]
        self._copies = {
            at: InPlaceCall("_copyto", [arguments[at]], [bound[at]])
            for at in range(len(bound))
            if at not in requests
        }
        learning = [at for at, request in requests.items() if request != "null"]
        self._learning = [arguments[at] for at in learning]
        self._executor = symbol.bind(
            context,
            args=bound,
            args_grad={names[at]: arguments[at].grad for at in learning},
            grad_req={**dict.fromkeys(names, "null"), **{names[at]: requests[at] for at in learning}},
        )
        self._objective, self._outputs = objective, self._executor.outputs
        self._heads = [mx.nd.zeros_like(each) for each in self._outputs]
        self._one = self._heads[objective] + 1

    def forward(self, arguments: Sequence[Array]) -> list[Array]:
        """Return the outputs for a batch."""
        for at, copy in self._copies.items():
            if at not in self._constants or arguments[at] is not self._last[at]:
                copy.take(arguments[at])
                copy()
        self._last = list(arguments)
        self._executor.forward(is_train=True)
        return [each if at == self._objective else each.copy() for at, each in enumerate(self._outputs)]

    def backward(self, head: Array | None) -> None:
        """Compute the gradients of the parameters; `head` is that of the objective, 1 by default."""
        self._heads[self._objective] = self._one if head is None else head
        self._executor.backward(self._heads)
        for array in self._learning:
            set_fresh(array, True)
