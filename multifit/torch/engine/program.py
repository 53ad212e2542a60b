"""The program of a step: the net, its losses and figures as modules."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, Protocol

import torch
from torch import fx

from ...engines import AUTO, CUDA_GRAPHS
from ...errors import raise_problems
from ...gluon.execution.graph_cut import TracedGraph, cut_traced
from ...gluon.execution.network import Network
from ...log_once import LogOnce
from ..graph import read_graph
from ..operators.catalogue import WAITING
from ..translate import freed_with_source, tensors_of, translate
from .backward import AutogradPass, BackwardPass
from .cuda_graphs import runner_of
from .parameters import Parameters
from .refusals import of_operators, refuse
from .shared_features import SharedFeatures
from .tensors import Tensors, unshared


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


CAPTURES = {"cuda"}  # kinds of devices


class CompileMode(NamedTuple):
    """How a program runs.

    If it `compiles`, torch compiles it. If it `captures`, it runs as CUDA graphs; if the user `requested`
    these, it is captured however little memory is free. `log` takes the reason why something is not captured.
    """

    compiles: bool = False
    captures: bool = False
    requested: bool = False
    log: Callable[[str], object] = logging.getLogger("multifit").debug

    @property
    def uncaptured(self) -> CompileMode:
        """The same without CUDA graphs."""
        return CompileMode(self.compiles)

    def on(self, device: torch.device, log_once: LogOnce) -> CompileMode:
        """How it runs on a device; the user is warned if what was requested is not captured."""
        if device.type not in CAPTURES:
            return self.uncaptured
        return self._replace(log=log_once.warning) if self.requested else self


COMPILE_MODES: dict[bool | str, CompileMode] = {
    False: CompileMode(),
    AUTO: CompileMode(captures=True),
    CUDA_GRAPHS: CompileMode(captures=True, requested=True),
    True: CompileMode(compiles=True, captures=True),
}


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


class BranchedComputation(NamedTuple):
    """A body, and the rest; it runs in training only, to compare gradients.

    `copies` are, for each output of the body, the inputs of the rest that take it, by task; the key None is
    for an input that no task's gradient reaches. If the body `repeats`, it can be passed back several times.
    """

    body: WholeComputation
    rest: WholeComputation
    inputs: Sequence[str]
    copies: Sequence[Mapping[int | None, str]]
    repeats: bool

    def run(self, given: Mapping[str, torch.Tensor]) -> Computed:
        """Return the outputs of the rest, and the backward passes of both parts."""
        named, features = dict(given), []
        copies: list[dict[int, torch.Tensor]] = []
        for feature, names in zip(self.body.values(given).values(), self.copies):
            learns = feature.requires_grad
            own = {task: feature.detach().requires_grad_(learns and task is not None) for task in names}
            named.update((name, own[task]) for task, name in names.items())
            taken = {task: own[task] for task in sorted(task for task in own if task is not None)}
            if learns and taken:
                features.append(feature)
                copies.append(taken)
        values = self.rest.values(named)
        leaves = [copy for of_feature in copies for copy in of_feature.values()]
        through_body = AutogradPass(features, self.body.trained, self.repeats)
        return Computed(values, [self.rest.backward_pass(values, leaves), through_body], copies)

    def on_aliases(self) -> BranchedComputation:
        """Return the computation on other parameters of the same memory."""
        return self._replace(body=self.body.on_aliases(), rest=self.rest.on_aliases())

    @property
    def buffers(self) -> list[torch.Tensor]:
        """The tensors held by both parts that are not parameters."""
        return [*self.body.buffers, *self.rest.buffers]


class Computed(NamedTuple):
    """Values by name, and the backward passes from them; without gradients, there are none.

    The first pass is that of the objectives. Where tasks branch, `copies` are the tasks' copies of each
    feature; the first pass returns their gradients after those of the parameters, and a second one passes
    gradients of the features back through the body. `captured` says whether the next run overwrites values
    and gradients.
    """

    values: Tensors
    backward_passes: Sequence[BackwardPass] = ()
    copies: Sequence[Mapping[int, torch.Tensor]] = ()
    captured: bool = False


class Computation(Protocol):
    """Computes values from the tensors of its inputs."""

    @property
    def inputs(self) -> Sequence[str]:
        """The names of the tensors that it takes."""

    def run(self, given: Mapping[str, torch.Tensor]) -> Computed:
        """Return the values for tensors by name, and the backward passes."""

    def on_aliases(self) -> Computation:
        """Return the computation on other parameters of the same memory, to which no autograd graph refers.

        One of earlier batches would bring in its own stream, on which nothing may run during a capture.
        """

    @property
    def buffers(self) -> list[torch.Tensor]:
        """The tensors besides parameters that it holds, and may change."""


class WholeComputation(NamedTuple):
    """A function with what its backward pass begins and ends at.

    `function` takes the `held` tensors, which keep their memory, then those of the `inputs`, and returns the
    `outputs`. `trained` are those of the held tensors that receive gradients, and `objectives` those of the
    outputs that are differentiated.
    """

    function: Callable[..., Sequence[torch.Tensor]]
    held: Sequence[torch.Tensor]
    trained: Sequence[torch.Tensor]
    inputs: Sequence[str]
    outputs: Sequence[str]
    objectives: Sequence[str]

    def run(self, given: Mapping[str, torch.Tensor]) -> Computed:
        """Return the outputs, and the backward pass of the objectives."""
        values = self.values(given)
        return Computed(values, [self.backward_pass(values)] if torch.is_grad_enabled() else [])

    def values(self, given: Mapping[str, torch.Tensor]) -> Tensors:
        """Return the outputs."""
        return dict(zip(self.outputs, self.function(*self.held, *[given[name] for name in self.inputs])))

    def backward_pass(self, values: Tensors, leaves: Sequence[torch.Tensor] = ()) -> AutogradPass:
        """Return the backward pass of the objectives to what is trained, and to other leaves."""
        return AutogradPass([values[name] for name in self.objectives], [*self.trained, *leaves])

    def on_aliases(self) -> WholeComputation:
        """Return the computation on other parameters of the same memory."""
        parameters = [each for each in self.held if isinstance(each, torch.nn.Parameter)]
        aliases = {id(each): torch.nn.Parameter(each.detach()) for each in parameters}
        held, trained = ([aliases.get(id(each), each) for each in of] for of in (self.held, self.trained))
        return self._replace(held=held, trained=trained)

    @property
    def buffers(self) -> list[torch.Tensor]:
        """The held tensors that are not parameters."""
        return [each for each in self.held if not isinstance(each, torch.nn.Parameter)]
