"""A graph that MXNet traced, as a module of torch on a net's parameters."""

from __future__ import annotations

from typing import Any, Mapping

import torch

from ...gluon.execution.traced_graph import TracedGraph
from ..graph import read_graph
from ..translate import translate
from .compiled import compiled
from .parameters import Parameters


class Program:
    """Computes a traced graph.

    Raises SpecError with everything in the graph that has no translation. If it `compiles`, so does a call if
    torch cannot.

    `trained` are the names of the parameters that it uses and that receive gradients. All of it is one graph:
    there is no `parting` of tasks.
    """

    parting = None

    def __init__(
        self, traced: TracedGraph, parameters: Parameters, training: bool, compiles: bool | str = False
    ) -> None:
        parameters.take_new()
        variables = parameters.variables()
        used = [name for name in read_graph(traced.symbol).variables if name not in traced.inputs]
        tensors = {name: parameters.tensors[variables[name]] for name in used}
        self.module = translate(traced.symbol, list(traced.inputs), tensors, training, variables)
        self._run = compiled(self.module, compiles) if compiles else self.module
        self._inputs, self._outputs = list(traced.inputs.values()), traced.outputs
        self.trained = [variables[name] for name in used if isinstance(tensors[name], torch.nn.Parameter)]

    @property
    def inputs(self) -> list[str]:
        """The names of what it is called with."""
        return self._inputs

    def __call__(self, given: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Return the outputs by name, for tensors by name."""
        return dict(zip(self._outputs, self._run(*[given[name] for name in self._inputs])))
