"""Gluon nets and functions as modules of torch: their symbols, each traced once and translated."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ...gluon.compat import mx
from ...gluon.graph.cut import as_json
from ...gluon.step.blocks import blocks_of
from ...gluon.step.network import flatten, regroup
from ...utils.errors import Problem, SpecError, raise_problems
from ...utils.text import last_line, quoted
from .parameters import WAY_OUT, Held, with_frozen
from .translate import read_graph, translate, untranslated

Places = list[tuple[Any, Any]]
"""Where each argument of a graph is: in a list or dict of tensors, under a key; None is for the inputs."""


class Traced(NamedTuple):
    """A translated graph, where its arguments are, its result's structure, its symbol, and its operators."""

    function: Callable[..., Sequence[Tensor]]
    places: Places
    structure: Any
    symbol: Any
    operators: Sequence[str]


class GluonModule(nn.Module):
    """Computes functions on symbols, which are traced: once for training, and once for evaluation.

    `held` are the parameters that they use; ``initialise()`` gives them their first values. `where` is the
    name in messages, and `way_out` what can be done about a function that cannot be traced.
    """

    way_out = "write it as a HybridBlock, whose hybrid_forward uses F's operators, and no shapes or numbers"
    held: Held

    def __init__(self, where: str, initialise: Callable[[], object]) -> None:
        super().__init__()
        self.where, self._initialise = where, initialise
        self._graphs: dict[Hashable, Traced] = {}

    def compute(self, name: Hashable, function: Callable[..., Any], tensors: Sequence[Tensor | None]) -> Any:
        """Return what a function on symbols computes; `name` tells it from others.

        Raises SpecError if it cannot be traced, or if the graph cannot be translated.
        """
        frozen = self.held.frozen_norms() if self.training else ()
        form = name, self.training, frozen, tuple([each is None for each in tensors])
        given = [each for each in tensors if each is not None]
        graph = self._graphs.get(form)
        if graph is None:
            # torch.compile must not follow what MXNet does
            graph = self._graphs[form] = torch.compiler.disable(self._traced)(
                function, form[-1], frozen, given
            )
        arguments = [given[at] if held is None else held[at] for held, at in graph.places]
        return regroup(graph.structure, iter(graph.function(*arguments)))

    def _traced(
        self, function: Callable[..., Any], absent: Sequence[bool], frozen: tuple[bool, ...], given: Any
    ) -> Traced:
        graph = self.trace(function, absent, frozen)
        self._materialise(graph, given)
        return graph

    def trace(self, function: Callable[..., Any], absent: Sequence[bool], frozen: tuple[bool, ...]) -> Traced:
        """Trace a function of symbols, None where an argument is `absent`, and translate the graph."""
        names = [f"#input{at}" for at in range(len(absent) - sum(absent))]
        symbols = iter([mx.sym.var(name) for name in names])
        result = _called(function, [None if each else next(symbols) for each in absent], self)
        leaves: list[Any] = []
        structure = flatten(result, leaves)
        others = sorted({type(each).__name__ for each in leaves if not isinstance(each, mx.sym.Symbol)})
        if others or not leaves:
            raise self.refuse(f"it returns {' and '.join(others) or 'nothing'} for symbols")
        symbol = mx.sym.Group(leaves)
        variables, means = symbol.list_inputs(), self.held.frozen_means(frozen)
        foreign = [each for each in variables if each not in self.held.variables and each not in names]
        if foreign:
            way_out = "make the Block that holds them a child"
            raise self.refuse(f"it reads {quoted(foreign)}, which it does not hold", way_out)
        text = with_frozen(as_json(symbol), means) if means else as_json(symbol)
        raise_problems([self._problem(each) for each in untranslated(text)])
        places = [(None, names.index(n)) if n in names else self.held.place(n) for n in variables]
        module = translate(text, variables, {}, self.training)
        operators = [node.operator for node in read_graph(text).calls()]
        return Traced(module.forward, places, structure, symbol, operators)

    def refuse(self, why: str, way_out: str = "") -> SpecError:
        """Return the error of something that cannot be traced."""
        message = f'engine="torch": {self.where} cannot become a graph: {why}; {way_out or self.way_out}'
        return SpecError(f"{message}, {WAY_OUT}")

    def _problem(self, of: Problem) -> Problem:
        message = f'engine="torch": {self.where}: {of.message}; use other operators, {WAY_OUT}'
        return Problem("spec", message)

    def _materialise(self, graph: Traced, given: Iterable[Tensor]) -> None:
        """Give parameters that have no values yet their first ones; shapes are those that fit the inputs."""
        tensors = [*self.parameters(), *self.buffers()]
        if not any(map(is_lazy, tensors)) and all(p._data is not None for p in self.held.parameters.values()):
            return
        self._initialise()
        shapes = {f"#input{at}": tuple(each.shape) for at, each in enumerate(given)}
        self.held.infer(graph.symbol, shapes)


def _called(function: Callable[..., Any], symbols: Sequence[Any], module: GluonModule) -> Any:
    """Call a function with symbols, in the module's mode; what it raises becomes a SpecError."""
    mode = mx.autograd.train_mode if module.training else mx.autograd.predict_mode
    try:
        with mode(), mx.name.NameManager():
            return function(*symbols)
    except Exception as error:
        raise module.refuse(f"{type(error).__name__}: {last_line(error)}") from error


class BridgedNet(GluonModule):
    """A Gluon net as a module; its parameters have the structural names that they have in Gluon.

    It is called with the net's inputs, and returns what the net does. `block` is Gluon's net.
    """

    def __init__(
        self, block: Any, parameters: Any, tensors: dict[Any, Any], initialise: Callable[[], object]
    ) -> None:
        super().__init__("the net", initialise)
        hooked = [
            n or "the net" for n, b in blocks_of(block).items() if b._forward_hooks or b._forward_pre_hooks
        ]
        if hooked:
            raise self.refuse(f"{quoted(hooked)} has hooks", "detach them")
        self.block = block
        self.held = Held(self, block, parameters, tensors, "the net's parameters")

    def forward(self, *inputs: Tensor | None) -> Any:
        """Return what the net does, in the same structure."""
        return self.compute("net", self.block, inputs)


class Forward:
    """A TaskSpec's ``forward(net, slots)`` on tensors, traced through the net.

    In evaluation, one that cannot be traced runs with MXNet on the CPU, after ``refresh()`` has given the
    Gluon net the current parameters.
    """

    def __init__(
        self, net: BridgedNet, function: Callable[..., Any], evaluates: bool,
        refresh: Callable[[], object], log_once: Callable[[str], object],
    ) -> None:  # fmt: skip
        self._net, self._function, self._evaluates = net, function, evaluates
        self._refresh, self._log_once, self._on_host = refresh, log_once, False

    def __call__(self, net: nn.Module, slots: Mapping[str, Any]) -> Any:
        """Return the outputs; `net` is not used: it may be the compiled net."""
        names, tensors = tuple(slots), list(slots.values())
        where, self._net.where = self._net.where, "forward=, with the net,"
        try:
            if not self._on_host:
                return self._net.compute(
                    (self, names), lambda *each: self._called(dict(zip(names, each))), tensors
                )
        except SpecError as error:
            if not self._evaluates or self._net.training:
                raise
            self._on_host = True
            self._log_once(f"evaluate.forward= runs with MXNet on the CPU: {error}")
        finally:
            self._net.where = where
        return self._run_on_host(slots)

    def _called(self, slots: Mapping[str, Any]) -> Any:
        return self._function(self._net.block, slots)

    def _run_on_host(self, slots: Mapping[str, Any]) -> Any:
        self._refresh()
        arrays = {n: each if each is None else to_array(each) for n, each in slots.items()}
        device = next((each.device for each in slots.values() if each is not None), None)
        flat: list[Any] = []
        with mx.autograd.predict_mode():
            structure = flatten(self._called(arrays), flat)
        return regroup(structure, iter([torch.from_numpy(each.asnumpy()).to(device) for each in flat]))


def to_array(tensor: Tensor) -> Any:
    """Return a tensor as an NDArray on the CPU; this waits for the device."""
    return mx.nd.array(tensor.numpy(force=True), dtype=tensor.numpy(force=True).dtype)
