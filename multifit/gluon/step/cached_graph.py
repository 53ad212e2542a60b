"""Runs a traced graph, planned where shapes repeat."""

from __future__ import annotations

import json
import operator
import threading
import warnings
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from typing import Any

from ...utils.protocols import Array
from ..compat import mx
from ..graph.cut import as_json
from ..graph.repair import correct_gradients

MAX_PLANS = 32  # of one graph; batches of further shapes run without
MAX_SEEN = 4096  # signatures that were seen once; beyond that, all are forgotten


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
    def positions(self) -> dict[int, int]:
        """The position of each array that is used among the arguments, by the array's number in a run."""
        return {number: at for at, number in self._arrays}

    @property
    def dense(self) -> bool:
        """Whether no gradient is sparse."""
        return all(parameter._grad_stype == "default" for _, parameter in self._parameters)

    def gradients(self, arguments: Sequence[Any]) -> dict[int, tuple[Any, str]]:
        """Return, by position, the gradient array of each parameter that learns, and "write" or "add"."""
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


Backward = Callable[[Sequence["Array | None"]], None]
"""Runs the backward pass; takes a head gradient for each objective, None for 1."""

_TRACING = threading.RLock()  # warnings are filtered for the whole process, not for a thread


class CachedGraph(mx.gluon.HybridBlock):
    """A graph of blocks that are not registered as its children, so that the user's net is not changed.

    Hybridizing the net itself would freeze whichever mode traced it first: a net that branches on
    ``autograd.is_training()`` would return its training outputs when evaluating. With a graph for each stage,
    each has its own mode, and switching costs nothing.

    The graph is traced once and runs in two ways: for arrays of any shapes; and, for shapes that repeat, with
    memory and operators planned in advance (MXNet's ``static_alloc`` and ``static_shape``), which halves the
    time of small nets. A subclass may run training batches in another way, by :meth:`_new_step`.

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
        self._seen: set[Hashable] = {signature}
        self._plans: dict[Hashable, dict[bool, Any]] = {}  # by signature and device: what runs such batches
        self._steps: dict[Hashable, Any] = {}  # the same, of training batches that run without autograd
        self.running: Any = None  # what ran the last batch without autograd
        self.hybridize()

    def collect_params(self, select: str | None = None) -> Any:
        """Return the parameters of everything in the graph (`select` is Gluon's and unused here)."""
        return self._parameters()

    @property
    def backward(self) -> Backward | None:
        """The function for the last run's backward pass; None if autograd has recorded the objectives."""
        return None if self.running is None else self.running.backward

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
        planned; else it is from the second batch of a signature on. Raises ValueError if different arrays are
        None than in the first call.
        """
        graph_arguments = self._arguments or self.trace(arrays)
        if [array is not None for array in arrays] != self._is_array:
            raise ValueError("other slots are None than in the first batch")
        context = mx.context.current_context()
        arguments, replaced = graph_arguments.fill([a for a in arrays if a is not None], context)
        if replaced:
            # A planned graph would silently continue to write gradients into the arrays that were replaced.
            self._plans.clear()
            self._steps.clear()
        self.running = None
        if not self._is_planned(signature, context):
            return self._call(arguments, None, context)
        plan = signature, context
        if mx.autograd.is_recording() and mx.autograd.is_training():
            if plan not in self._steps:
                with mx.autograd.pause(train_mode=True):
                    self._steps[plan] = self._new_step(arguments, context)
            self.running = self._steps[plan]
            if self.running is not None:
                with mx.autograd.pause(train_mode=True):
                    outputs: list[Any] = self.running.forward(arguments)
                    return outputs
        return self._call(arguments, plan, context)

    def trace(self, arrays: Sequence[Any]) -> GraphArguments:
        """Trace the graph, without running it, for arrays as :meth:`run` takes them."""
        _build(self, arrays)
        self._is_array = [array is not None for array in arrays]
        self._arguments = GraphArguments(self._cached_op_args)
        return self._arguments

    def _is_planned(self, signature: Hashable, context: Any) -> bool:
        """Whether memory is planned for batches of a signature; the first of them decides for later ones."""
        if (signature, context) in self._plans:
            return True
        if signature is None or len(self._plans) >= MAX_PLANS:
            return False
        if signature in self._seen:
            self._plans[signature, context] = {}
            return True
        if len(self._seen) >= MAX_SEEN:
            self._seen.clear()
        self._seen.add(signature)
        return False

    def _call(self, arguments: list[Any], plan: Hashable, context: Any) -> list[Any]:
        """Run the graph with autograd; with planned memory unless `plan` is None."""
        if plan is None:
            return as_list(self._cached_op(*arguments))
        # A single operator would plan its memory again each time that recording is switched on or off.
        operators, recorded = self._plans[plan], mx.autograd.is_recording()
        if recorded not in operators:
            is_data = [is_data for is_data, _ in self._cached_op_args]
            operators[recorded] = self._planned_operator(self._cached_graph[1], is_data)
        return as_list(operators[recorded](*arguments))

    def _new_step(self, arguments: Sequence[Any], context: Any) -> Any:
        """Return what runs training batches like this without autograd; None to run them with it.

        It has two methods: ``forward(arguments)`` returns the outputs of the graph, and ``backward(heads)``
        computes the gradients of its objectives.
        """
        return None

    def _planned_operator(self, symbol: Any, is_data: Sequence[bool]) -> Any:
        """Return an operator with planned memory; `is_data` says which of its inputs are not parameters."""
        flags: list[tuple[str, Any]] = [
            ("data_indices", [i for i, each in enumerate(is_data) if each]),
            ("param_indices", [i for i, each in enumerate(is_data) if not each]),
        ]
        # With static shapes, operators write running statistics without the device's knowledge, so that
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
