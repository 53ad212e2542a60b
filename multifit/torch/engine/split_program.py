"""A traced graph that runs in two parts, to measure each task's gradients where the tasks branch."""

from __future__ import annotations

from typing import Any, Collection, Mapping

import torch

from ...gluon.execution.traced_cut import cut_traced
from ...gluon.execution.traced_graph import TracedGraph
from .compile_mode import CompileMode
from .parameters import Parameters
from .program import Program
from .shared_features import SharedFeatures
from .tensors import Tensors


class SplitProgram:
    """Computes a traced graph as two: a body, then the tasks' own parts on copies of the body's outputs.

    `tasks` are the tasks of the losses, and `updated` are MXNet's names of the parameters that trainers
    update. If the body `repeats`, there is a backward pass through it for each task. `trained` are the names
    of the parameters that the tasks' parts use and that receive gradients; `features` has those of the body
    that trainers update. `objectives` are the names of the outputs that are minimised. As its parts are not
    captured, it has no `graphs`.
    """

    graphs = None

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
        self._body = Program(cut.body, parameters, training, CompileMode() if repeats else mode.uncaptured)
        self._rest = Program(cut.rest, parameters, training, mode.uncaptured)
        self._copies = cut.copies
        # in MXNet's order, because that engine may continue with these gradients
        shared = [name for name in names.values() if name in set(self._body.trained)]
        self._shared = {name: parameters.tensors[name] for name in shared}
        self._parameters = parameters
        self.inputs, self.trained = list(dict.fromkeys(traced.inputs.values())), self._rest.trained
        self.objectives = self._rest.objectives
        self.features: SharedFeatures | None = None

    def __call__(self, given: Mapping[str, Any]) -> Tensors:
        """Return the outputs by name, for tensors by name."""
        named, features = dict(given), []
        for tensor, variables in zip(self._body(given).values(), self._copies):
            learns = tensor.requires_grad and torch.is_grad_enabled()
            copies = {task: tensor.detach().requires_grad_(learns and task is not None) for task in variables}
            named.update({name: copies[task] for task, name in variables.items()})
            taken = {task: copy for task, copy in copies.items() if task is not None}
            if learns and taken:
                features.append((tensor, taken))
        self.features = SharedFeatures(features, self._shared, any(map(self._parameters.adds, self._shared)))
        return self._rest(named)
