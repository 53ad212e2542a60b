"""Metrics of labels that may be missing: they see only present labels, and a figure gives their share."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Hashable, Mapping, Sequence

import numpy as np

from ...checks import partly_missing_problem
from ...errors import raise_problems
from ...protocols import Array, Shape, Tensor
from ...spec.missing import label_of, presence
from ...spec.names import LABELS, Ref
from ...spec.terms import MetricTerm
from ..compat import mx
from ..data.arrays import new_array
from .base import DeviceMetric, PairGraph, as_float64, float64_sum
from .label_rules import count_in_part


class Coverage(mx.metric.EvalMetric):
    """The share of a label's values that are present; it is updated with 1 where they are, else 0."""

    def __init__(self, name: str = "coverage") -> None:
        super().__init__(name)

    def update(self, labels: Sequence[Any], preds: Sequence[Any]) -> None:
        """Add one batch."""
        for label in labels:
            self.sum_metric += float(label.sum().asscalar())
            self.num_inst += label.size


class DeviceCoverage(DeviceMetric):
    """:class:`Coverage` on the device."""

    def _match(self, labels: Sequence[Any], outputs: Sequence[Any]) -> list[tuple[Any, Any]] | None:
        """Pair each label with nothing."""
        return [(label, ()) for label in labels]

    def _graph_for(self, label: Shape, output: Shape) -> PairGraph | None:
        return self._statistics

    def _statistics(self, F: ModuleType, label: Tensor, output: Tensor) -> list[Tensor]:
        return as_float64(F, float64_sum(F, label), F.size_array(label))


class PresentMatches(DeviceMetric):
    """Counts the samples whose prediction and label agree, among those whose label is present.

    Its last label is 1 where the label is present, else 0.
    """

    def __init__(self, matches: DeviceMetric) -> None:
        super().__init__(matches.metric)
        self._matches = matches

    def bind(self, labels: Sequence[Shape], outputs: Sequence[Shape], samples: int | None = None) -> bool:
        """See :meth:`DeviceMetric.bind`; returns False unless there is one label, with a value per sample."""
        return (
            len(labels) == 2
            and self._matches.bind(labels[:1], outputs, samples)
            and self._matches.returns_rows
        )

    @property
    def form(self) -> Hashable:
        """See :meth:`DeviceMetric.form`."""
        return self._matches.form

    def statistics(self, F: ModuleType, labels: Sequence[Tensor], outputs: Sequence[Tensor]) -> list[Tensor]:
        """See :meth:`DeviceMetric.statistics`."""
        prediction, label = self._matches.statistics(F, labels[:1], outputs)
        present = F.reshape(labels[1], (-1,))
        return as_float64(F, F.sum(F.broadcast_equal(prediction, F.trunc(label)) * present), F.sum(present))


def present_arrays(
    term: MetricTerm, axis: int | None, arrays: Mapping[Ref, Array], others: Mapping[str, Array]
) -> tuple[dict[Ref, Array], dict[str, Array]] | None:
    """Return one device's arrays with what is present for a metric; None if nothing is.

    `others` are what the losses returned, and `axis` is what :func:`value_axis` returns. If it is given, the
    metric gets, of each label and its output, the values that are present; both are left out if there are
    none. Otherwise it gets the samples that have all its labels; raises DataError if a sample has only a part
    of a label. This waits for the engine.
    """
    if axis is not None:
        values = dict(arrays)
        for output, label in zip(term.outputs, term.labels):
            mask = Ref(LABELS, presence(label.name))
            if mask in term.present:
                pair = _values(values.pop(output), values.pop(label), arrays[mask], axis)
                values.update(zip((output, label), pair))
        return (values, dict(others)) if any(ref in values for ref in term.labels) else None
    for ref in term.present:
        if count := count_in_part(arrays[ref]):
            raise_problems([partly_missing_problem(term.where, label_of(ref).name, "", count)])
    masks = [arrays[ref].asnumpy() for ref in term.present]
    rows = np.all([mask.reshape(len(mask), -1).all(axis=1) for mask in masks], axis=0)
    if not rows.any():
        return None
    index = new_array(np.flatnonzero(rows), arrays[term.present[0]].context, "int32")

    def chosen(array: Any) -> Any:
        is_per_sample = array is not None and array.shape[:1] == (len(rows),)
        return mx.nd.take(array, index, axis=0) if is_per_sample else array

    return {ref: chosen(a) for ref, a in arrays.items()}, {name: chosen(a) for name, a in others.items()}


def _values(output: Array, label: Array, present: Array, axis: int) -> list[Array]:
    """Return the values of an output and its label that are present, as samples; nothing if there are none.

    The classes stay along `axis`.
    """
    kept = np.flatnonzero(present.asnumpy())
    if not kept.size:
        return []
    index = new_array(kept, label.context, "int32")
    if label.size > len(label):
        if output.size == label.size:
            output = output.reshape((-1,))
        else:
            classes = output.shape[axis]
            output = mx.nd.moveaxis(output, axis, -1).reshape((-1, *(1,) * (axis - 1), classes))
        label = label.reshape((-1, *(1,) * (axis - 1)))
    return [mx.nd.take(array, index, axis=0) for array in (output, label)]
