"""Which programs a stage has: one for each form of batch, with the metrics that are computed in it."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

import numpy as np

from ...spec import TaskSpec
from ...spec.terms import MetricTerm, Term
from .. import metrics as devices
from ..metrics.accumulators import MetricSums
from ..metrics.stage_metric import StageMetric
from .fused_losses import cross_entropy, substitute
from .loss_graph import SAMPLES, LossGraph, fetch
from .network import Network, is_traceable
from .step_graph import StepGraph

__all__ = ["MAX_FORMS", "StepGraphCache", "load"]

MAX_FORMS = 32  # batches of more forms than this (sequences of many lengths) are not worth a graph each


class StepGraphCache:
    """Finds and makes the programs of a stage.

    Parameters
    ----------
    network : Network
        The net.
    spec : TaskSpec
        Its losses.
    measures : sequence of Measure
        The metrics of the stage; each is told whether it is computed on the device.
    tally : Tally
        The sums so far: a metric that must leave the device takes its own along.
    single : bool
        Whether there is one device only; a metric that needs a whole batch at once has a device-side path
        only then.
    differentiable : bool
        Whether gradients are computed through the outputs behind a graph.
    """

    def __init__(
        self,
        network: Network,
        spec: TaskSpec,
        measures: Sequence[StageMetric],
        tally: MetricSums,
        single: bool,
        differentiable: bool,
    ) -> None:
        self.network, self.spec, self.measures, self.tally = network, spec, list(measures), tally
        self._single, self._differentiable = single, differentiable
        self._known: dict[Any, StepGraph] = {}
        self._sized = False

    def __len__(self) -> int:
        return len(self._known)

    @property
    def first(self) -> StepGraph | None:
        """The program of the first form of batch that was seen."""
        return next(iter(self._known.values()), None)

    def find(self, shapes: tuple[Any, ...], size: int) -> StepGraph | None:
        """Return the program of batches whose slots have these shapes; None where there is none yet."""
        return self._known.get(self._form(shapes, size))

    def build(
        self, outputs: Mapping[str, Any], slots: Mapping[str, Any], size: int, shapes: tuple[Any, ...]
    ) -> StepGraph:
        """Make what runs for batches of a form, by what came of the first of them.

        Parameters
        ----------
        outputs, slots : mapping of str to NDArray
            Of one device.
        size : int
            Its number of samples.
        shapes : tuple
            Of the slots.
        """
        terms = [term for term in self.spec.terms if term.spec.scope != "batch"]
        traced = [term for term in terms if term.spec.fn is None or is_traceable(term.spec.fn)]
        plain = [term for term in terms if term not in traced]
        arrays = fetch(outputs, slots)
        metrics = self._device_metrics(traced, plain, arrays, size)
        faster = self._faster(traced, arrays)
        heads = LossGraph(traced, metrics["traceable"], faster), LossGraph(plain, metrics["plain"])
        for head in heads:
            head.samples = size
        program = StepGraph(self.network, *heads, differentiable=self._differentiable)
        if len(self._known) < MAX_FORMS:
            self._known[self._form(shapes, size)] = program
        return program

    def _form(self, shapes: tuple[Any, ...], size: int) -> tuple[Any, ...]:
        """Return what batches must have in common to share a program.

        A graph fits arrays of any size; only a metric's device-side path and what is computed in a loss's
        place are bound to the sizes of a sample.
        """
        on_device = [measure.on_device for measure in self.measures]
        bound = self._sized or any(on_device)
        return (size == 1, *[s if s is None else s[1:] if bound else len(s) for s in shapes])

    def _faster(self, terms: Sequence[Term], arrays: Mapping[Any, Any]) -> dict[str, Any]:
        found = {term.key: substitute(term.spec.fn, [arrays[ref] for ref in term.args]) for term in terms}
        faster = {key: function for key, function in found.items() if function is not None}
        self._sized = self._sized or any(function is not cross_entropy for function in faster.values())
        return faster

    def _device_metrics(
        self, traced: Sequence[Term], plain: Sequence[Term], arrays: Mapping[Any, Any], size: int
    ) -> dict[str, list[tuple[MetricTerm, Any]]]:
        metrics: dict[str, list[tuple[MetricTerm, Any]]] = {"traceable": [], "plain": []}
        first = not self._known
        for measure in self.measures:
            if measure.on_device or (first and not measure.settled):
                where = self._home(measure, traced, plain)
                device = self._bound(measure, arrays, size) if where else None
                if device is not None:
                    metrics[where].append((measure.term, device))
                elif measure.on_device:
                    self._leave_device(measure)
                measure.on_device = device is not None
        return metrics

    def _bound(self, measure: StageMetric, arrays: Mapping[Any, Any], size: int) -> Any:
        """Return a metric's device-side path for these arrays; None where there is none."""
        device = devices.device_metric(measure.metric)
        if device is None or (device.per_batch and not self._single):
            return None
        outputs = [arrays[ref].shape for ref in measure.term.outputs] + [(1,)] * len(measure.term.losses)
        labels = [arrays[ref].shape for ref in measure.term.labels]
        slots = all(ref.space != "outputs" for ref in measure.term.labels)
        return device if device.bind(labels, outputs, size if slots else None) else None

    def _leave_device(self, measure: StageMetric) -> None:
        """Hand to the metric itself what was summed on the device: it goes on with batches of any form."""
        sums = self.tally.read()
        if measure.term.where in sums:
            load(measure, sums)
            measure.fed = True

    @staticmethod
    def _home(measure: StageMetric, traced: Sequence[Term], plain: Sequence[Term]) -> str:
        """Return the head in which a metric can be computed, or an empty string."""
        if measure.term.spec.transform is not None or not measure.stock:
            return ""
        needed = set(measure.term.losses)
        for name, terms in (("traceable", traced), ("plain", plain)):
            if needed <= {figure for term in terms for figure in term.figures}:
                return name
        return ""


def load(measure: StageMetric, sums: Mapping[str, Any]) -> None:
    """Hand a metric what was summed on the devices."""
    own = sums[measure.term.where]
    totals = np.append(own, sums[SAMPLES]) if len(own) == 1 else own
    devices.device_metric(measure.metric).load(totals)
