"""Runs a traced graph, planned where shapes repeat."""

from __future__ import annotations

import json
import operator
import threading
import warnings
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from typing import Any

from ...protocols import Array
from ..compat import mx
from ..graph.cut import as_json
from ..graph.repair import correct_gradients
from .bound_executor import BatchArrays, BoundExecutor, ExecutedSteps, suits
from .loss_graph import Backward

MAX_CHANGES = 4  # of the planned shapes at most: each change costs the time of several batches


class ShapeStability:
    """Finds the signature that repeats on one device: two batches in a row have it."""

    def __init__(self, last: Hashable) -> None:
        self._stable: Hashable = None
        self._last = last
        self._changes = 0

    def repeats(self, signature: Hashable) -> bool:
        """Whether this is the signature to plan memory for."""
        repeated = signature is not None and signature == self._last
        if repeated and signature != self._stable and self._changes < MAX_CHANGES:
            self._stable, self._changes = signature, self._changes + 1
        self._last = signature
        return signature is not None and signature == self._stable


class GraphArguments:
    """The arguments of a graph: arrays, new in each call, and parameters, looked up once for each device."""

    def __init__(self, arguments: Sequence[tuple[bool, Any]]) -> None:
        self._arrays = [(at, index) for at, (is_data, index) in enumerate(arguments) if is_data]
        self._parameters = [
            (at, parameter) for at, (is_data, parameter) in enumerate(arguments) if not is_data
        ]
        self._lists: list[Any] = []
        self._by_context: dict[Any, list[Any]] = {}

    @property
    def places(self) -> dict[int, int]:
        """The place of each array that is used among the arguments, by the array's number in a run."""
        return {number: at for at, number in self._arrays}

    @property
    def dense(self) -> bool:
        """Whether no gradient is sparse."""
        return all(parameter._grad_stype == "default" for _, parameter in self._parameters)

    def gradients(self, arguments: Sequence[Any]) -> dict[int, tuple[Any, str]]:
        """Return, by place, the gradient array of each parameter that learns, and "write" or "add"."""
        requests = {at: parameter.grad_req for at, parameter in self._parameters}
        return {at: (arguments[at].grad, how) for at, how in requests.items() if how != "null"}

    def fill(self, arrays: Sequence[Any], context: Any) -> tuple[list[Any], bool]:
        """Return all arguments, and whether a parameter's arrays were replaced since the last call."""
        # Gluon makes a new list whenever it makes new arrays for a parameter
        lists = [parameter._data for _, parameter in self._parameters]
        lists += [parameter._grad for _, parameter in self._parameters]
        replaced = len(lists) != len(self._lists) or not all(map(operator.is_, lists, self._lists))
        if replaced:
            self._lists = lists
            self._by_context.clear()
        if context not in self._by_context:
            template: list[Any] = [None] * (len(self._arrays) + len(self._parameters))
            for at, parameter in self._parameters:
                template[at] = parameter.data(context)
            self._by_context[context] = template
        arguments = self._by_context[context].copy()
        for at, index in self._arrays:
            arguments[at] = arrays[index]
        return arguments, replaced


_TRACING = threading.RLock()  # warnings are filtered for the whole process, not for a thread


class CachedGraph(mx.gluon.HybridBlock):
    """A graph of blocks that are not registered as its children, so that the user's net is not changed.

    Hybridizing the net itself would freeze whichever mode traced it first: a net that branches on
    ``autograd.is_training()`` would return its training outputs when evaluating. With a graph for each stage,
    each has its own mode, and switching costs nothing.

    The graph is traced once and runs in two ways: for arrays of any shapes; and, for shapes that repeat, with
    memory and operators planned in advance (MXNet's ``static_alloc`` and ``static_shape``), which halves the
    time of small nets. Subclasses may run training batches on an Executor instead.

    `function`, ``function(F, *arrays) -> list of arrays``, is called once, with symbols. `parameters` returns
    the ParameterDict of everything that it uses. `signature` is the signature, as in :meth:`run`, of a batch
    that was seen before the graph was made.
    """

    _cached_graph: Any  # Gluon's: the inputs and the symbol, once traced

    def __init__(
        self, function: Callable[..., Any], parameters: Callable[[], Any], signature: Hashable = None
    ) -> None:
        super().__init__()
        self._function, self._parameters = function, parameters
        self._is_array: list[bool] = []  # which arrays were not None when it was traced
        self._arguments: GraphArguments | None = None
        self._static_ops: dict[bool, Any] = {}  # by whether gradients are recorded
        self._first_signature = signature
        self._stability: dict[Any, ShapeStability] = {}
        self._executed = ExecutedSteps(self._new_step)
        self.hybridize()

    def collect_params(self, select: str | None = None) -> Any:
        """Return the parameters of everything in the graph (`select` is Gluon's and unused here)."""
        return self._parameters()

    @property
    def backward(self) -> Backward | None:
        """The function for the last run's backward pass; None if autograd has recorded the objectives."""
        return self._executed.backward

    @property
    def is_traced(self) -> bool:
        """Whether the graph exists; before that, a call may fail because something cannot be traced."""
        return self._arguments is not None

    def hybrid_forward(self, F: Any, *arrays: Any) -> Any:
        """Trace the function."""
        return self._function(F, *arrays)

    def _get_graph(self, *arrays: Any) -> Any:
        """Trace the graph for MXNet, whose gradients need corrections."""
        if not self._cached_graph:
            inputs, symbol = super()._get_graph(*arrays)
            trained = {p.name for p in self._parameters().values() if p.grad_req != "null"}
            self._cached_graph = inputs, correct_gradients(symbol, trained)
        return self._cached_graph

    def run(self, arrays: Sequence[Any], signature: Hashable = None) -> list[Any]:
        """Run the graph on arrays of one device, some of which may be None; the first call traces it.

        Arrays of equal shapes and dtypes must have equal signatures. Without a signature, memory is never
        planned. Raises ValueError if different arrays are None than in the first call.
        """
        graph_arguments = self._arguments or self._trace(arrays)
        if [array is not None for array in arrays] != self._is_array:
            raise ValueError("other slots are None than in the first batch")
        context = mx.context.current_context()
        arguments, replaced = graph_arguments.fill([a for a in arrays if a is not None], context)
        if replaced:
            # A planned graph would silently continue to write gradients into the arrays that were replaced.
            self._release_plans()
        stability = self._stability.setdefault(context, ShapeStability(self._first_signature))
        planned = signature if stability.repeats(signature) else None
        outputs = self._executed.run(arguments, planned, context)
        return self._call(arguments, planned, context) if outputs is None else outputs

    def _call(self, arguments: list[Any], planned: Hashable, context: Any) -> list[Any]:
        """Run the graph with autograd; with planned memory unless `planned` is None."""
        return as_list((self._cached_op if planned is None else self._static_op())(*arguments))

    def _new_step(self, arguments: Sequence[Any], context: Any) -> Any:
        """Return a step that runs training batches like this on an Executor; None to run with autograd."""
        return None

    def _release_plans(self) -> None:
        self._static_ops.clear()
        self._executed.clear()

    def _trace(self, arrays: Sequence[Any]) -> GraphArguments:
        _build(self, arrays)
        self._is_array = [array is not None for array in arrays]
        self._arguments = GraphArguments(self._cached_op_args)
        return self._arguments

    def _static_op(self) -> Any:
        """Return the operator with planned memory: one with gradients, and another without.

        A single operator would plan its memory again each time that recording is switched on or off.
        """
        recorded = mx.autograd.is_recording()
        if recorded not in self._static_ops:
            is_data = [is_data for is_data, _ in self._cached_op_args]
            self._static_ops[recorded] = self._planned_operator(self._cached_graph[1], is_data)
        return self._static_ops[recorded]

    def _planned_operator(self, symbol: Any, is_data: Sequence[bool]) -> Any:
        """Return an operator with planned memory; `is_data` says which of its inputs are not parameters."""
        flags: list[tuple[str, Any]] = [
            ("data_indices", [i for i, each in enumerate(is_data) if each]),
            ("param_indices", [i for i, each in enumerate(is_data) if not each]),
        ]
        # With static shapes, operators write running statistics without the engine's knowledge, so that
        # reading them after a batch would not wait for it; and the loops of F.contrib.foreach and while_loop
        # compute wrong numbers. In these cases, only the memory is planned.
        assert self._arguments is not None
        static = not symbol.list_auxiliary_states() and self._arguments.dense and not has_control_flow(symbol)
        return mx.nd.CachedOp(symbol, [*flags, ("static_alloc", True), ("static_shape", static)])


def as_list(outputs: Any) -> list[Any]:
    """Return the outputs of a graph's operator as a list: MXNet returns a single output as it is."""
    return outputs if isinstance(outputs, list) else [outputs]


def has_control_flow(symbol: Any) -> bool:
    """Whether a graph has a loop or a branch of MXNet's: ``foreach``, ``while_loop`` or ``cond``."""
    return any("subgraphs" in node for node in json.loads(as_json(symbol))["nodes"])


def give_graph(net: mx.gluon.HybridBlock, inputs: Sequence[Any]) -> None:
    """Trace a hybridized net that has no graph of its own yet, in evaluation mode.

    Gluon traces a net when it is called directly, which the graphs here never do; ``net.export`` needs that
    graph. Gluon keeps the mode of the first call. A net that cannot be traced in
    evaluation mode, or that has parameters of unknown shape, gets no graph.
    """
    if not net._cached_graph and not any(p._deferred_init for p in net.collect_params().values()):
        with suppress(Exception), mx.autograd.pause(train_mode=False):
            _build(net, inputs)


def forget_errors(*functions: Any) -> None:
    """Let those functions that are blocks, and their children, run their graphs anew after an error.

    Once MXNet could not infer the shapes of a graph, it names no cause when the graph is called again.
    """
    for function in functions:
        if isinstance(function, mx.gluon.Block):
            function.apply(_forget_operator)


def _forget_operator(block: mx.gluon.Block) -> None:
    if isinstance(block, mx.gluon.HybridBlock):
        block._cached_op = None  # the traced graph stays


def _build(block: mx.gluon.HybridBlock, inputs: Sequence[Any]) -> None:
    with _TRACING, warnings.catch_warnings():
        # MXNet warns of parameters that this graph does not need; the plan lists what is unused
        warnings.filterwarnings("ignore", message=".*is not used by any computation.*")
        block._build_cache(*inputs)


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
