"""A graph that MXNet traced, as a module of torch on a net's parameters."""

from __future__ import annotations

from typing import Any, Hashable, Mapping

import torch

from ...errors import raise_problems
from ...gluon.execution.network import Network
from ...gluon.execution.traced_graph import TracedGraph
from ..graph import read_graph
from ..operators.catalogue import WAITING
from ..translate import tensors_of, translate
from .compile_mode import CompileMode
from .compiled import compiled
from .computation import Computed, WholeComputation
from .cuda_graph_runner import runner_of
from .lifted import lifted
from .parameters import Parameters
from .refusals import of_operators
from .shared_features import SharedFeatures
from .tensors import unshared

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
