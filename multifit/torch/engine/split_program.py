"""A traced graph that runs in two parts, to measure each task's gradients where the tasks branch."""

from __future__ import annotations

from typing import Collection, Mapping

from ...gluon.execution.traced_cut import cut_traced
from ...gluon.execution.traced_graph import TracedGraph
from .branched_computation import BranchedComputation
from .compile_mode import CompileMode
from .computation import Computed
from .cuda_graph_runner import runner_of
from .parameters import Parameters
from .program import Program
from .shared_features import SharedFeatures


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
