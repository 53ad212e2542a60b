"""A metric as declared, in one stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...distributed import World
from ...engines.kept_arrays import KeptArrays
from ...engines.metric_figures import MetricFigures, metrics_of_stages
from ...spec import TaskSpec
from ...spec.terms import MetricTerm, Ref
from ...utils.errors import SpecError
from ..compat import mx
from ..data.arrays import new_array, to_numpy
from ..user_code import user_code
from .base import Coverage, DeviceMetric
from .catalogue import counts_whole_pass, device_metric, direction, figure_names, value_axis
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
from .sums import PassSums

MIXED = (
    "{}: arrays of some batches can be summed, and those of others cannot, so that there is no figure of the "
    "whole pass; give all batches arrays of one form"
)
COMPUTED = {
    True: "summed on the device",
    False: "summed outside of the graph",
    None: "no loader has what it takes",
}


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


class StageMetric(MetricFigures):
    """A metric in one stage: where it is computed, and its figures.

    `is_whole` says whether its figure is computed from all samples of a pass, which does not depend on how
    these are cut into batches: from sums, or else from its arrays, which are `kept`. Functions and MXNet's
    own metrics are; others are updated batch by batch. `keeps` says whether arrays of a batch had to be kept.
    `on_device` says whether it is summed in the graphs; None before the first batch that has what it takes.
    `measured` says whether the metric object holds something measured since the last reset.
    """

    def __init__(self, term: MetricTerm, metric: Any) -> None:
        super().__init__(term, metric)
        self.takes_preds = takes_preds(metric)
        self.is_whole = is_function(metric) or counts_whole_pass(metric)
        self.on_device: bool | None = None
        self.kept, self.keeps = KeptArrays(term.where), False
        self._computed = 0  # pieces of `kept` from which the metric object was computed

    def fork(self) -> StageMetric:
        """Return a metric like this that has measured nothing."""
        return StageMetric(self.term, copy_metric(self.metric))

    @property
    def where_computed(self) -> str:
        """Where it is computed, for the plan."""
        if self.keeps:
            return "computed from the whole pass"
        return COMPUTED[self.on_device] if self.is_whole else "updated batch by batch"

    @property
    def merges(self) -> bool:
        """Whether what ranks have measured can be added up."""
        return self.is_whole

    def bind(self, arrays: Mapping[Ref, Any], losses: set[str]) -> DeviceMetric | None:
        """Return the device metric for one device's outputs and slots; None if it is not in the graph.

        `losses` are the figures of the graph's losses. The first batch decides. Raises SpecError if a later
        one is of another form.
        """
        was, device = self.on_device, None
        is_plain = self.takes_preds and self.term.spec.transform is None
        if was is not False and is_plain and losses.issuperset(self.term.losses):
            device = self._bound(arrays)
        if was and device is None:
            raise SpecError(MIXED.format(self.term.where))
        self.on_device = device is not None
        return device

    def _bound(self, arrays: Mapping[Ref, Any]) -> DeviceMetric | None:
        device = device_metric(self.metric)
        outputs, labels, masks = (
            [arrays[ref].shape for ref in refs]
            for refs in (self.term.outputs, self.term.labels, self.term.present)
        )
        by_value = not masks or value_axis(self.term, self.metric, arrays) is not None
        if device is None or len(masks) > 1 or not by_value:
            return None
        return device if device.bind(labels, outputs + [(1,)] * len(self.term.losses), *masks) else None

    def update(self, measured: Measured, sums: PassSums) -> None:
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
            for size, (labels, outputs) in zip(measured.sizes, groups(self.metric, self.term, measured)):
                if self.keeps or not self._sum(labels, outputs, sums):
                    self.keeps = True
                    arrays = list(map(as_numpy, labels)), list(map(as_numpy, outputs))
                    self.kept.add(sums.batches, size, measured.axis, *arrays)

    def _sum(self, labels: Sequence[Any], outputs: Sequence[Any], sums: PassSums) -> bool:
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
            vector = mx.nd.concat(*pieces, dim=0).astype("float64")
            sums.add(((self.term.where, device.width),), vector)
        return True

    def compute(self, sums: Mapping[str, np.ndarray], complete: bool) -> None:
        """Set the metric object to a pass's sums, or compute it from its arrays, if there are any.

        Unless the pass is `complete`, a function may raise ValueError, because it cannot be computed from so
        few samples: its figure is then NaN.
        """
        totals = sums.get(self.term.where)
        if totals is not None and len(self.kept):
            raise SpecError(MIXED.format(self.term.where))
        if totals is not None:
            device = device_metric(self.metric)
            assert device is not None
            try:
                with user_code(lambda: self.term.where):
                    device.load(totals)
            except SpecError as error:
                raise SpecError(f"{self.term.where}: {error.problems[0]}") from None
            self.measured = True
        elif len(self.kept) > self._computed:
            labels, outputs = self.kept.joined()
            self.metric.reset()
            refs = [ref for each in (self.term.outputs, self.term.labels) for ref in each]
            shown = zip(map(str, refs), [*outputs, *labels]) if self.term.spec.transform is None else ()
            with user_code(lambda: f"{self.term.where}.update", *shown):
                self.measured = self._update_whole((labels, outputs), complete)
            self._computed = len(self.kept) if self.measured else 0

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

    def restart(self, optional: frozenset[str] = frozenset()) -> None:
        """Decide again where to compute it, too: shapes may have changed."""
        super().restart(optional)
        self.on_device, self.keeps = None, False

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
        return {**super().state(), "on_device": self.on_device}

    def load(self, state: Mapping[str, Any], divisible: bool) -> bool:
        """Load what :meth:`state` returned into a metric that was just reset; return whether that is lost."""
        self.on_device = state["on_device"]
        return super().load(state, divisible)

    def _add_kept(self, state: Mapping[str, Any]) -> None:
        super()._add_kept(state)
        self.keeps = self.keeps or state["kept"] is not None

    def weighed(self, samples: int) -> dict[str, tuple[float, float]]:
        """Return its figures with their weights: what it has counted, or the samples if it does not count."""
        figures = self.figures()
        return dict(zip(figures, zip(figures.values(), _weights(self.metric, len(figures), samples))))


def _weights(metric: Any, figures: int, samples: int) -> list[float]:
    """Return each figure's weight.

    MXNet's metrics, and metrics derived from them, count samples, arrays or batches in `num_inst`.
    """
    if type(metric) is mx.metric.CompositeEvalMetric:
        return [w for part in metric.metrics for w in _weights(part, np.size(part.get()[1]), samples)]
    counted = getattr(metric, "num_inst", 0)
    return [float(counted if np.ndim(counted) == 0 and counted else samples)] * figures


def gathered(world: World, terms: Sequence[MetricTerm], measured: Measured) -> Measured:
    """Return the outputs, slots and losses that some metrics take, of all ranks' devices, rank by rank."""
    refs = list(dict.fromkeys(ref for term in terms for ref in term.refs))
    losses = list(dict.fromkeys(name for term in terms for name in term.losses))
    local = [to_numpy(device[ref]) for device in measured.arrays for ref in refs]
    local += [to_numpy(device[name]) for device in measured.parts for name in losses]
    sizes: list[int] = []
    arrays: list[dict[Any, Any]] = []
    parts: list[dict[Any, Any]] = []
    for counts, values in world.gather((list(measured.sizes), local)):
        split = len(counts) * len(refs)
        sizes += counts
        arrays += _by_device(len(counts), refs, values[:split])
        parts += _by_device(len(counts), losses, values[split:])
    return Measured(arrays, parts, sizes, measured.axis)


def _by_device(devices: int, names: Sequence[Any], values: Sequence[np.ndarray]) -> list[dict[Any, Any]]:
    arrays = iter([new_array(value) for value in values])
    return [{name: next(arrays) for name in names} for _ in range(devices)]
