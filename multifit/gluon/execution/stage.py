"""One stage, training or evaluating: net, losses and figures of a TaskSpec on all devices."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from ...errors import Problem
from ...spec import TaskSpec
from ..compat import mx
from ..data.arrays import shapes_of
from ..data.batches import Batch
from ..metrics.accumulators import MetricSums
from ..metrics.stage_metric import StageMetric
from ..precision.precisions import FULL, Precision
from ..validation.inspection import check_call, inspect_metric, inspect_slots, inspect_term
from .batch_losses import BatchLosses
from .loss_graph import LossGraph, LossOutputs, fetch
from .loss_weights import BatchLossScale, LossScaler
from .network import Network, NetworkWithHook
from .result import Result
from .step_graph import StepGraph
from .step_graph_cache import StepGraphCache, load
from .throttle import Throttle

__all__ = ["Stage"]


class Stage:
    """Runs batches through a net for one TaskSpec.

    Parameters
    ----------
    net : Block
        The user's net.
    spec : TaskSpec
        What is routed where.
    name : {"train", "evaluate"}
        Whether gradients are recorded.
    measures : sequence of Measure
        The metrics of this stage.
    contexts : list of Context
        The devices; a metric that needs a whole batch at once has a device-side path only on one.
    hooks : TrainingHooks, optional
        What handlers change of outputs and objectives.
    precision : Precision
        In what the net computes.

    Attributes
    ----------
    shown : bool
        Whether somebody looks at the outputs and at each sample's losses: what nobody looks at is not handed
        out.
    """

    def __init__(
        self,
        net: Any,
        spec: TaskSpec,
        name: str,
        measures: Sequence[StageMetric],
        contexts: Sequence[Any],
        hooks: Any = None,
        precision: Precision = FULL,
    ) -> None:
        self.spec, self.name, self.measures = spec, name, list(measures)
        self.training, self.shown = name == "train", True
        objective_changes = hooks is not None and hooks.active("change_objective")
        self.network: Any = Network(net, spec, name, not objective_changes, precision)
        if hooks is not None and hooks.active("change_outputs"):
            self.network = NetworkWithHook(self.network, hooks.change_outputs)
        self.joint = BatchLosses([term for term in spec.terms if term.spec.scope == "batch"])
        self.tally = MetricSums(spec.terms)
        self.weights = LossScaler(spec.terms)
        self.pace = Throttle()
        self.bound = False
        self.known: dict[str, list[str]] = {}
        differentiable = bool(self.joint.terms) or objective_changes
        self._programs = StepGraphCache(
            self.network, spec, self.measures, self.tally, len(contexts) == 1, differentiable
        )
        self._ahead: dict[str, Any] | None = None

    @property
    def program(self) -> StepGraph | None:
        """The program of the first form of batch that was seen."""
        return self._programs.first

    def recording(self) -> Any:
        """Return the scope in which this stage's forward passes run."""
        return mx.autograd.record() if self.training else mx.autograd.pause(train_mode=False)

    def bind(self, batch: Batch) -> list[Problem]:
        """Run the net on the first device's share of the first batch, and check all that can be checked.

        Nothing moves; :meth:`run` goes on with what the net returned.
        """
        problems = [problem for term in self.spec.terms for problem in check_call(term)]
        slots = batch.slots[0]
        problems += inspect_slots(self.spec, batch.slots)
        with self.recording(), batch.contexts[0]:
            outputs, found = self.network.bind(slots)
        if problems + found:
            return problems + found
        arrays = fetch(outputs, slots)
        for measure in self.measures:
            problems += inspect_metric(measure, arrays)
        for term in self.spec.terms:
            problems += inspect_term(self.spec, term, arrays, batch.slots)
        self._ahead, self.bound = outputs, not problems
        return problems

    def run(self, batch: Batch, state: Any = None) -> Result:
        """Run the net, the losses and the device-side figures; nothing waits for the engine."""
        result = Result(self.spec, batch)
        factors = self.weights.factors(batch, state)
        with self.recording():
            ran = []
            for context, slots, size in zip(batch.contexts, batch.slots, batch.sizes):
                with context:
                    ran.append(self._run_device(result, slots, size, factors, context))
            sums = self._run_joint(result, factors)
        for program, heads in ran:  # outside the recording: sums are no part of the graph
            for head, found in zip((program.traceable, program.plain), heads):
                statistics = found.statistics
                if self.tally.norms:
                    statistics = self.weights.counted(head, statistics, factors)
                self.tally.add(head.layout, statistics)
                if self.tally.weighted:
                    self._add_weighted(head, statistics, factors)
        self._add_joint(sums, factors, batch.samples)
        for key, norm in self.tally.norms.items():
            norm.add(factors.norms[key])
        self.tally.batches += 1
        self.tally.samples += batch.samples
        self.pace.follow(_last(ran))
        return result

    def measure(self, result: Result) -> None:
        """Update the metrics that have no device-side path; they may wait for the engine."""
        host = [measure for measure in self.measures if not measure.on_device]
        if host:
            arrays = [fetch(*pair) for pair in zip(result.outputs, result.batch.slots)]
            for measure in host:
                measure.update(arrays, result.parts)

    def reset(self) -> None:
        """Begin an epoch: forget all sums."""
        self.tally.clear()
        self.pace.clear()
        for measure in self.measures:
            measure.reset()

    def names(self, measure: StageMetric) -> list[str]:
        """Return the names of a metric's figures; some metrics tell them only once they were fed."""
        if measure.fed or measure.term.key not in self.known:
            self.known[measure.term.key] = measure.names()
        return self.known[measure.term.key]

    def how(self) -> str:
        """Say what was traced into graphs, and what was not."""
        assert self.program is not None
        joint = "; losses of scope batch run on all devices at once" if self.joint.terms else ""
        return f"{self.program.how()}{self.network.changes}{joint}"

    def figures(self) -> dict[str, float]:
        """Return all figures by name, without prefix; this waits for the engine."""
        if not self.tally.batches:
            return {}
        sums = self.tally.read()
        figures = self.tally.figures(sums)
        for measure in self.measures:
            if measure.on_device:
                load(measure, sums)
                measure.fed = True
            figures.update(measure.figures())
        return figures

    def _run_device(
        self, result: Result, slots: Mapping[str, Any], size: int, factors: BatchLossScale, context: Any
    ) -> tuple[StepGraph, list[LossOutputs]]:
        shapes = result.batch.shapes or shapes_of(slots.values())
        program = self._programs.find(shapes, size)
        count = self.weights.constant((float(size),), context)
        ahead, self._ahead = self._ahead, None
        if program is None or ahead is not None:
            outputs = ahead if ahead is not None else self.network(slots)
            program = self._programs.build(outputs, slots, size, shapes)
            heads = program.heads(outputs, slots, self._vectors(program, factors, context), count)
            self.pace.fit([*slots.values(), *_last([(program, heads)])] * len(result.batch.contexts))
        else:
            shown = self.shown or not all(measure.on_device for measure in self.measures)
            outputs, heads = program.run(
                slots, self._vectors(program, factors, context), count, shapes, shown
            )
        result.outputs.append(outputs)
        result.parts.append({figure: value for head in heads for figure, value in head.parts.items()})
        result.objectives += [head.objective for head in heads if head.objective is not None]
        return program, heads

    def _vectors(self, program: StepGraph, factors: BatchLossScale, context: Any) -> list[Any]:
        if not self.training:
            return [None, None]
        return [self.weights.vector(head, factors, context) for head in (program.traceable, program.plain)]

    def _run_joint(self, result: Result, factors: BatchLossScale) -> dict[str, list[Any]]:
        if not self.joint.terms:
            return {}
        arrays = [fetch(*pair) for pair in zip(result.outputs, result.batch.slots)]
        objectives, parts, sums = self.joint(arrays, factors.weights if self.training else None)
        result.objectives += objectives
        for own, more in zip(result.parts, parts):
            own.update(more)
        return sums

    def _add_joint(self, sums: Mapping[str, list[Any]], factors: BatchLossScale, samples: int) -> None:
        for term in self.joint.terms:
            # what it returned is normalised already: its figure is the mean over batches, weighted by samples
            total = mx.nd.concat(*sums[term.where], dim=0) * samples
            self.tally.add(((term.where, len(term.parts)),), total)
            if term.key in self.tally.weighted:
                self.tally.weighted[term.key].add(
                    total[term.minimized : term.minimized + 1] * factors.weights[term.key]
                )

    def _add_weighted(self, head: LossGraph, statistics: Any, factors: BatchLossScale) -> None:
        for term in head.terms:
            if term.key in self.tally.weighted:
                at = head.slices[term.where].start + term.minimized
                self.tally.weighted[term.key].add(statistics[at : at + 1] * factors.weights[term.key])


def _last(ran: Sequence[tuple[StepGraph, list[LossOutputs]]]) -> list[Any]:
    """Return what is small of what was computed on each device, and is there when all of it is."""
    found = [
        head.statistics if head.objective is None else head.objective for _, heads in ran for head in heads
    ]
    return [array for array in found if array is not None]
