"""A graph that MXNet traced, as a module of torch on a net's parameters."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Hashable, Mapping

import torch

from ...gluon.execution.network import Network
from ...gluon.execution.traced_graph import TracedGraph
from ..graph import read_graph
from ..operators.catalogue import WAITING
from ..translate import tensors_of, translate
from .compile_mode import CompileMode
from .compiled import compiled
from .cuda_graph_runner import CudaGraphRunner
from .cuda_graphs import Computation, CudaGraphs
from .lifted import lifted
from .parameters import Parameters

MAX_PROGRAMS = 256  # one for each form of batches; beyond that, the oldest is discarded


class Program:
    """Computes a traced graph.

    Raises SpecError with everything in the graph that has no translation. If it is compiled, a call raises
    SpecError if torch cannot compile it.

    `trained` are the names of the parameters that it uses and that receive gradients, and `objectives` those
    of the outputs that are minimised. As it is a single graph, there are no `features` that tasks share.
    """

    features = None

    def __init__(
        self, traced: TracedGraph, parameters: Parameters, training: bool, mode: CompileMode
    ) -> None:
        variables, graph = parameters.variables(), read_graph(traced.symbol)
        used = [name for name in graph.variables if name not in traced.inputs]
        tensors = tensors_of(traced.constants, device=parameters.device)
        tensors.update((name, parameters.tensors[variables[name]]) for name in used if name in variables)
        trained = {name: tensors[name] for name in used if isinstance(tensors[name], torch.nn.Parameter)}
        self.module = translate(traced.symbol, list(traced.inputs), tensors, training, variables)
        self.inputs, self._outputs = list(traced.inputs.values()), traced.outputs
        self.trained = [variables[name] for name in trained]
        self.objectives = [name for name in traced.outputs if name.partition(".")[0] == "objective"]
        function, held = lifted(self.module)
        if mode.compiles:
            function = compiled(function)
        self._run: Callable[..., Any] = partial(function, *held)
        waiting = sorted({node.operator for _, node in graph.calls()} & WAITING)
        if mode.captures and waiting:
            mode.log(f"{', '.join(waiting)} cannot be captured as CUDA graphs: it waits for the device")
        elif mode.captures:
            places = [traced.outputs.index(name) for name in self.objectives]
            self._run = CudaGraphRunner(Computation(function, held, [*trained.values()], places), mode)

    def __call__(self, given: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Return the outputs by name, for tensors by name."""
        return dict(zip(self._outputs, self._run(*[given[name] for name in self.inputs])))

    @property
    def graphs(self) -> CudaGraphs | None:
        """The CUDA graphs that the last call replayed, if it did; its outputs then require no gradients."""
        return self._run.graphs if isinstance(self._run, CudaGraphRunner) else None


class NetPrograms:
    """A net without its losses: one program, or, if it is recorded, one for each form of batches."""

    def __init__(self, network: Network, parameters: Parameters, training: bool, mode: CompileMode) -> None:
        self._network, self._options = network, (parameters, training, mode)
        self._programs: dict[Hashable, Program] = {}

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
