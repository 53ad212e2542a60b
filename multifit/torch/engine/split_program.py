"""A traced graph that runs in two parts, to measure each task's gradients where the tasks branch."""

from __future__ import annotations

from typing import Collection, Mapping

import torch

from ...gluon.execution.traced_cut import cut_traced
from ...gluon.execution.traced_graph import TracedGraph
from .branched_computation import BranchedComputation, Inputs
from .compile_mode import CompileMode
from .computation import Branches, Computed
from .cuda_graph_runner import runner_of
from .parameters import Parameters
from .program import Program
from .shared_features import SharedFeatures


class SplitProgram:
    """Computes a traced graph as two programs: a body, then the tasks' own parts on copies of its outputs.

    `tasks` are the tasks of the losses, and `updated` are MXNet's names of the parameters that trainers
    update. If the body `repeats`, there is a backward pass through it for each task. `trained` are the names
    of the parameters that the tasks' parts use and that receive gradients; `shared` has those of the body
    that trainers update. `objectives` are the names of the outputs that are minimised.
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
        self.shared = {name: parameters.tensors[name] for name in shared}
        self.parts, self._adds = (body, rest), parameters.adds
        self.inputs, self.trained = list(dict.fromkeys(traced.inputs.values())), rest.trained
        self.objectives, self.named = rest.objectives, rest.named
        computation = BranchedComputation(
            body.computation._replace(trained=[*self.shared.values()]),
            rest.computation,
            Inputs(self.inputs, body.inputs, rest.inputs),
            cut.copies,
            repeats,
        )
        self._run = runner_of(computation, sorted({*body.waiting, *rest.waiting}), mode)

    def run(self, given: Mapping[str, torch.Tensor]) -> Computed:
        """Compute the outputs for tensors by name."""
        return self._run([given[name] for name in self.inputs])

    def features(self, branches: Branches) -> SharedFeatures:
        """Return the features of a batch, to compare the tasks' gradients."""
        return SharedFeatures(branches, self.shared, any(map(self._adds, self.shared)))
