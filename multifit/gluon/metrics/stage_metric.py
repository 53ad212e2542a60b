"""A metric as declared, in one stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import numpy as np

from ...engines.kept_arrays import KeptArrays
from ...engines.metric_figures import MetricFigures, metrics_of_stages
from ...errors import SpecError
from ...spec import TaskSpec
from ...spec.names import Ref
from ...spec.terms import MetricTerm
from ..compat import mx
from ..data.arrays import new_array
from ..user_code import user_code
from .base import Coverage, DeviceMetric, PresentMatches
from .catalogue import counts_whole_pass, device_metric, direction, figure_names
from .host import (
    Groups,
    Measured,
    as_array,
    as_metric,
    as_numpy,
    copy_metric,
    groups,
    is_function,
    takes_preds,
    update,
    update_metric,
)
from .sums import MetricSums


def declared_metrics(spec: TaskSpec) -> dict[str, list[StageMetric]]:
    """Return each stage's metrics; an EvalMetric used twice is copied, so that its sums do not mix."""
    used: set[int] = set()

    def made(term: MetricTerm, _: TaskSpec) -> StageMetric:
        metric = as_metric(term)
        metric = copy_metric(metric) if used & _identities(metric) else metric
        used.update(_identities(metric))
        return StageMetric(term, metric)

    return metrics_of_stages(spec, made, lambda term: StageMetric(term, Coverage()))


def _identities(metric: Any) -> set[int]:
    """Return the identities of a metric and of the metrics that it is composed of."""
    parts = metric.metrics if isinstance(metric, mx.metric.CompositeEvalMetric) else ()
    return {id(metric)}.union(*map(_identities, parts))


class Place(Enum):
    """Where a metric is computed."""

    UNDECIDED = "undecided"  # until the first batch
    DEVICE = "device"  # as sums within the step's graph
    HOST = "host"  # outside of the graph


PLACES = {
    Place.DEVICE: "summed on the device",
    Place.HOST: "summed outside of the graph",
    Place.UNDECIDED: "no loader has what it takes",
}


class StageMetric(MetricFigures):
    """A metric in one stage: where it is computed, and its figures.

    `is_whole` says whether its figure is computed from all samples of a pass, which does not depend on how
    these are cut into batches: from sums, or else from its arrays, which are `kept`. Functions and MXNet's
    own metrics are; others are updated batch by batch. `keeps` says whether arrays of a batch had to be kept.
    `measured` says whether the metric object holds something measured since the last reset.
    """

    def __init__(self, term: MetricTerm, metric: Any) -> None:
        super().__init__(term, metric)
        self.takes_preds = takes_preds(metric)
        self.is_whole = is_function(metric) or counts_whole_pass(metric)
        self.place, self.kept = Place.UNDECIDED, KeptArrays(term.where)
        self.keeps = False
        self._computed = 0  # pieces of `kept` from which the metric object was computed

    def fork(self) -> StageMetric:
        """Return a metric like this that has measured nothing."""
        return StageMetric(self.term, copy_metric(self.metric))

    @property
    def where_computed(self) -> str:
        """Where it is computed, for the plan."""
        if self.keeps:
            return "computed from the whole pass"
        return PLACES[self.place] if self.is_whole else "updated batch by batch"

    def bind(self, arrays: Mapping[Ref, Any], size: int) -> DeviceMetric | None:
        """Return the device metric for one device's outputs and slots; None if they cannot be in the graph.

        `size` is the device's number of samples.
        """
        device = device_metric(self.metric)
        if device is None:
            return None
        if self.term.present:
            if not device.counts_labels:
                return None
            device = PresentMatches(device)
        outputs = [arrays[ref].shape for ref in self.term.outputs] + [(1,)] * len(self.term.losses)
        labels = [arrays[ref].shape for ref in (*self.term.labels, *self.term.present)]
        # if batches may lack slots of the metric, nothing counts the samples of those that have them
        samples = None if self.term.optional else size
        return device if device.bind(labels, outputs, samples) else None

    def update(self, measured: Measured, sums: MetricSums) -> None:
        """Measure a batch outside of the graph: add to `sums`, keep arrays, or update the metric object."""
        measured = measured.present(self.term, self.metric) if measured.arrays else measured
        if not measured.arrays:
            return
        first = measured.arrays[0]
        shown = [(str(ref), first[ref]) for ref in self.term.args if ref in first]
        with user_code(lambda: f"{self.term.where}.update", *shown):
            if not self.is_whole:
                update(self.metric, self.term, measured)
                self.measured = True
                return
            for size, (labels, outputs) in zip(
                measured.joining.sizes, groups(self.metric, self.term, measured)
            ):
                if self.keeps or not self._sum(labels, outputs, sums):
                    self.keeps = True
                    arrays = list(map(as_numpy, labels)), list(map(as_numpy, outputs))
                    self.kept.add(sums.batches, size, measured.joining.axis, *arrays)

    def _sum(self, labels: Sequence[Any], outputs: Sequence[Any], sums: MetricSums) -> bool:
        """Add one device's arrays to the sums, operator by operator; return whether that is possible."""
        device = device_metric(self.metric)
        if device is None:
            return False
        labels, outputs = list(map(as_array, labels)), list(map(as_array, outputs))
        if not device.bind([a.shape for a in labels], [a.shape for a in outputs]):
            return False
        floats = [a.astype("float32") if np.dtype(a.dtype).kind == "f" else a for a in outputs]
        with outputs[0].context:
            pieces = device.statistics(mx.nd, labels, floats)
            sums.add(((self.term.where, device.width),), mx.nd.concat(*pieces, dim=0))
        return True

    def compute(self, sums: Mapping[str, np.ndarray], kept: KeptArrays, complete: bool) -> None:
        """Set the metric object to a pass's sums, or compute it from its arrays, if there are any.

        Unless the pass is `complete`, a function may raise ValueError, because it cannot be computed from so
        few samples: its figure is then NaN.
        """
        totals = sums.get(self.term.where)
        if totals is not None and len(kept):
            raise SpecError(
                f"{self.term.where}: arrays of some batches can be summed, and those of others cannot, so "
                "that there is no figure of the whole pass; give all batches arrays of one form"
            )
        if totals is not None:
            device = device_metric(self.metric)
            assert device is not None
            try:
                with user_code(lambda: self.term.where):
                    device.load(totals)
            except SpecError as error:
                raise SpecError(f"{self.term.where}: {error.problems[0]}") from None
            self.measured = True
        elif len(kept) > self._computed:
            labels, outputs = kept.joined()
            self.metric.reset()
            refs = [ref for each in (self.term.outputs, self.term.labels) for ref in each]
            shown = zip(map(str, refs), [*outputs, *labels]) if self.term.spec.transform is None else ()
            with user_code(lambda: f"{self.term.where}.update", *shown):
                self.measured = self._update_whole((labels, outputs), complete)
            self._computed = len(kept) if self.measured else 0

    def _update_whole(self, arrays: Groups, complete: bool) -> bool:
        """Update the metric object with the arrays of a pass; return whether that could be computed."""
        if not is_function(self.metric):
            labels, outputs = ([new_array(array) for array in each] for each in arrays)
            update_metric(self.term.where, self.metric, labels, outputs)
            return True
        return self.could_compute(lambda: self.metric.update(*arrays), complete)

    def reset(self) -> None:
        """Discard everything measured."""
        with user_code(lambda: f"{self.term.where}.reset"):
            self.metric.reset()
        self.kept.clear()
        self.measured, self._computed = False, 0

    def restart(self) -> None:
        """Discard everything measured, and decide again where to compute it: shapes may have changed."""
        self.reset()
        self.place, self._names = Place.UNDECIDED, None
        self.keeps = self._warned = False

    @property
    def direction(self) -> str | None:
        """Whether it is better "min" or "max"; None if unknown."""
        return self.term.spec.mode or direction(self.metric)

    def own_names(self) -> list[str]:
        """Return the names of its figures, if it is known which they are."""
        return figure_names(self.metric) or []

    def result(self) -> Any:
        """Return what the metric has computed."""
        with user_code(lambda: f"{self.term.where}.get"):
            return self.metric.get()

    def state(self) -> dict[str, Any]:
        """Return what was measured, and where."""
        return {**super().state(), "place": self.place.value}

    def load(self, state: Mapping[str, Any], divisible: bool) -> bool:
        """Load what :meth:`state` returned into a metric that was just reset; return whether that is lost."""
        self.place = Place(state["place"])
        return super().load(state, divisible)

    def _add_kept(self, state: Mapping[str, Any]) -> None:
        super()._add_kept(state)
        self.keeps = self.keeps or state["kept"] is not None
