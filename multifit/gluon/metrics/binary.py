"""F1 and MCC on the device, from the counts of a whole pass."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from ...protocols import Shape, Tensor
from ..compat import mx
from .base import DeviceMetric, PairGraph, as_float64, sample_size


class DeviceF1(DeviceMetric):
    """``mx.metric.F1``: the harmonic mean of precision and recall of class 1.

    With ``average="macro"`` too, which in MXNet is a mean over updates. The statistics are the numbers of
    true positives, predicted positives, positive labels, samples, and labels of a third value, which mxnet
    does not allow.
    """

    width = 5
    counts_field = "metrics"  # of the metric

    def __init__(self, metric: mx.metric.EvalMetric) -> None:
        super().__init__(metric)
        self.counts: Any = getattr(metric, self.counts_field)

    def _value(self) -> float:
        """Return the value computed from the metric's four counts."""
        return float(self.counts.fscore)

    def _graph_for(self, label: Shape, output: Shape) -> PairGraph | None:
        is_column = len(output) == 2 and label[:1] == output[:1] and sample_size(label) == 1
        return self._statistics if is_column else None

    def _statistics(self, F: ModuleType, label: Tensor, output: Tensor) -> list[Tensor]:
        predicted = F.cast(F.argmax(output, axis=1), "int32") == 1
        label = F.reshape(F.cast(label, "int32"), (-1,))
        positive = label == 1
        third = F.broadcast_not_equal(label, F.min(label)) * F.broadcast_not_equal(label, F.max(label))
        counts = [F.sum(array) for array in (predicted * positive, predicted, positive)]
        return as_float64(F, *counts, F.size_array(label), F.sum(third))

    def load(self, totals: np.ndarray) -> None:
        """See :meth:`DeviceMetric.load`; raises ValueError for labels of more than two values."""
        if totals[4] > 0:
            raise ValueError(f"{type(self.counts).__name__} currently only supports binary classification.")
        self.counts.reset_stats()
        hits, predicted, positive, size = (int(round(value)) for value in totals[:4])
        counts = self.counts
        counts.true_positives = counts.global_true_positives = hits
        counts.false_positives = counts.global_false_positives = predicted - hits
        counts.false_negatives = counts.global_false_negatives = positive - hits
        counts.true_negatives = counts.global_true_negatives = size - predicted - positive + hits
        self._set(self._value() * size, size)


class DeviceMCC(DeviceF1):
    """``mx.metric.MCC``: Matthews' correlation coefficient of two classes."""

    counts_field = "_metrics"

    def _value(self) -> float:
        return float(self.counts.matthewscc())
