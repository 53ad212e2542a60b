"""The program of a step: the net, its losses and figures as modules."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from operator import attrgetter
from typing import Any

import torch
from torch import fx

from ...errors import raise_problems
from ...gluon.execution.graph_cut import TracedGraph, cut_traced
from ...gluon.execution.network import Network
from ..from_gluon.graph import read_graph
from ..from_gluon.operators.catalogue import WAITING
from ..from_gluon.translate import freed_with_source, tensors_of, translate
from .computation import BranchedComputation, CompileMode, Computed, WholeComputation
from .cuda_graphs import runner_of
from .parameters import Parameters
from .refusals import of_operators, refuse
from .shared_features import SharedFeatures
from .tensors import unshared


def lifted(module: fx.GraphModule) -> tuple[Callable[..., Any], list[torch.Tensor]]:
    """Return a function that computes the same as a module, and the tensors that it takes first.

    These are the tensors that the module holds. Its own code reads ``body.0.weight`` attribute by attribute,
    which takes as long as an operator.
    """
    graph = fx.Graph()
    read = [node for node in module.graph.nodes if node.op == "get_attr"]
    arguments = {node: graph.placeholder(node.name) for node in read}
    graph.output(graph.graph_copy(module.graph, arguments))
    function = freed_with_source(fx.GraphModule(torch.nn.Module(), graph, "Lifted")).forward
    return function, [attrgetter(node.target)(module) for node in read]


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that :func:`torch.compile` compiles when it is first called.

    Raises
    ------
    SpecError
        In a call: torch has no compiler, or cannot compile the function.
    """
    run = torch.compile(function)

    def call(*tensors: torch.Tensor) -> Any:
        try:
            return run(*tensors)
        except torch._dynamo.exc.TorchDynamoException as error:  # also raised if there is no compiler
            why = str(error).strip().partition("\n")[0]  # the lines after that say how to log more
            raise_problems([refuse(f"compile=True: torch cannot compile: {why}", "leave it out")])

    return call


NET = "the graph of the net on torch"
MAX_PROGRAMS = 256  # one for each form of batches; beyond that, the oldest is discarded


class Program:
    """Computes a traced graph.

    Raises SpecError with everything in the graph that has no translation. If it is compiled, a call raises
    SpecError if torch cannot compile it.

    `run` computes the outputs for tensors by name. `trained` are the names of the parameters that it uses and
    that receive gradients, and `objectives` those of the outputs that are minimised. `modules` has the
    translated graph, and `waiting` its operators that wait for the device.
    """

    def __init__(
        self, traced: TracedGraph, parameters: Parameters, training: bool, mode: CompileMode
    ) -> None:
        raise_problems(of_operators(traced.symbol))
        variables, graph = parameters.variables(), read_graph(traced.symbol)
        used = [name for name in graph.variables if name not in traced.inputs]
        tensors = tensors_of(traced.constants, device=parameters.device)
        tensors.update((name, parameters.tensors[variables[name]]) for name in used if name in variables)
        trained = {name: tensors[name] for name in used if isinstance(tensors[name], torch.nn.Parameter)}
        module = translate(traced.symbol, list(traced.inputs), tensors, training, variables)
        self.modules = [module]
        self.inputs = list(traced.inputs.values())
        self.trained = [variables[name] for name in trained]
        self.objectives = [name for name in traced.outputs if name.partition(".")[0] == "objective"]
        function, held = lifted(module)
        if mode.compiles:
            function = compiled(function)
        function = unshared(function, held)  # an update changes parameters before handlers read outputs
        self.waiting = sorted({node.operator for _, node in graph.calls()} & WAITING)
        names = self.inputs, traced.outputs, self.objectives
        self.computation = WholeComputation(function, held, [*trained.values()], *names)
        self.run = runner_of(self.computation, self.waiting, mode)

    def features(self, computed: Computed) -> list[SharedFeatures]:
        """Return no features: no gradients of tasks are compared."""
        return []


class NetPrograms:
    """A net without its losses: one program, or, if it is recorded, one for each form of batches."""

    def __init__(self, network: Network, parameters: Parameters, training: bool, mode: CompileMode) -> None:
        self._network, self._options = network, (parameters, training, mode)
        self._programs: dict[Hashable, Program] = {}

    def clear(self) -> None:
        """Discard all programs."""
        self._programs.clear()

    def __call__(self, slots: Mapping[str, Any]) -> Program:
        """Return the program for a batch; raises SpecError if there is none."""
        form = None if self._network.traced else self._network.form(slots)
        if form not in self._programs:
            make_room(self._programs)
            self._programs[form] = Program(self._network.trace(slots), *self._options)
        return self._programs[form]


def make_room(programs: dict[Hashable, Any]) -> None:
    """Discard the oldest program if there are MAX_PROGRAMS."""
    if len(programs) >= MAX_PROGRAMS:
        del programs[next(iter(programs))]


class SplitProgram:
    """Computes a traced graph as two programs: a body, then the tasks' own parts on copies of its outputs.

    `tasks` are the tasks of the losses, and `updated` are MXNet's names of the parameters that trainers
    update. If the body `repeats`, there is a backward pass through it for each task. `run` computes the
    outputs for tensors by name. `trained` are the names of the parameters that the tasks' parts use and that
    receive gradients, and `objectives` those of the outputs that are minimised. `modules` are the translated
    graphs.
    """

    def __init__(
        self,
        traced: TracedGraph,
        tasks: Mapping[str, int],
        updated: Collection[str],
        repeats: bool,
        parameters: Parameters,
        training: bool,
        mode: CompileMode,
    ) -> None:
        names = {variable: name for variable, name in parameters.variables().items() if variable in updated}
        cut = cut_traced(traced, tasks, {v for v, name in names.items() if name in parameters.trained})
        # a compiled program allows one backward pass
        body = Program(cut.body, parameters, training, CompileMode() if repeats else mode.uncaptured)
        rest = Program(cut.rest, parameters, training, mode.uncaptured)
        # in MXNet's order, because that engine may continue with these gradients
        shared = [name for name in names.values() if name in set(body.trained)]
        self._shared = {name: parameters.tensors[name] for name in shared}
        self.inputs, self.trained = list(dict.fromkeys(traced.inputs.values())), rest.trained
        self.modules, self.objectives = [*body.modules, *rest.modules], rest.objectives
        of_body = body.computation._replace(trained=[*self._shared.values()])
        computation = BranchedComputation(of_body, rest.computation, self.inputs, cut.copies, repeats)
        self.run = runner_of(computation, sorted({*body.waiting, *rest.waiting}), mode)

    def features(self, computed: Computed) -> list[SharedFeatures]:
        """Return the features of a batch, to compare the tasks' gradients."""
        return [SharedFeatures(computed.copies, computed.backward_passes[1], self._shared)]
