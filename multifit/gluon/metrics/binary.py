"""F1 and MCC on the device, over all samples ("micro") or as a mean over batches ("macro")."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from ...protocols import Shape, Tensor
from ..compat import mx
from .base import DeviceMetric, PairGraph, as_float64


class DeviceF1(DeviceMetric):
    """``mx.metric.F1``: the harmonic mean of precision and recall of class 1.

    The statistics are the numbers of true positives, predicted positives, positive labels, samples, and
    labels of a third value, which mxnet does not allow.
    """

    width = 5
    average_field, counts_field = "average", "metrics"  # of the metric

    def __init__(self, metric: mx.metric.EvalMetric) -> None:
        super().__init__(metric)
        self.per_batch = getattr(metric, self.average_field) == "macro"
        self.counts: Any = getattr(metric, self.counts_field)

    def _micro(self) -> float:
        """Return the value computed from the metric's four counts."""
        return float(self.counts.fscore)

    def value(self, F: ModuleType, hits: Tensor, predicted: Tensor, positive: Tensor, size: Tensor) -> Tensor:
        """Return the value of one batch, of shape (1,)."""
        # the denominator is 0 only without hits, and then the value is 0
        return 2 * hits / F.broadcast_maximum(predicted + positive, F.ones_like(predicted))

    def _graph_for(self, label: Shape, output: Shape) -> PairGraph | None:
        return self._statistics if len(output) == 2 and label == output[:1] else None

    def _statistics(self, F: ModuleType, label: Tensor, output: Tensor) -> list[Tensor]:
        predicted = F.cast(F.argmax(output, axis=1), "int32") == 1
        label = F.cast(label, "int32")
        positive = label == 1
        third = F.broadcast_not_equal(label, F.min(label)) * F.broadcast_not_equal(label, F.max(label))
        counts = [F.sum(array) for array in (predicted * positive, predicted, positive)]
        return as_float64(F, *counts, F.size_array(label), F.sum(third))

    def fold(self, F: ModuleType, statistics: Tensor) -> Tensor:
        """See :meth:`DeviceMetric.fold`: (value, 1, 0, 0, labels of a third value)."""
        if not self.per_batch:
            return statistics
        hits, predicted, positive, size, third = [
            F.slice_axis(statistics, axis=0, begin=i, end=i + 1) for i in range(self.width)
        ]
        zero = F.zeros_like(size)
        value = self.value(F, hits, predicted, positive, size)
        return F.concat(value, F.ones_like(size), zero, zero, third, dim=0)

    def load(self, totals: np.ndarray) -> None:
        """See :meth:`DeviceMetric.load`; raises ValueError for labels of more than two values."""
        if totals[4] > 0:
            raise ValueError(f"{type(self.counts).__name__} currently only supports binary classification.")
        self.counts.reset_stats()
        if self.per_batch:
            super().load(totals)
            return
        hits, predicted, positive, size = (int(round(value)) for value in totals[:4])
        counts = self.counts
        counts.true_positives = counts.global_true_positives = hits
        counts.false_positives = counts.global_false_positives = predicted - hits
        counts.false_negatives = counts.global_false_negatives = positive - hits
        counts.true_negatives = counts.global_true_negatives = size - predicted - positive + hits
        self._set(self._micro() * size, size)


class DeviceMCC(DeviceF1):
    """``mx.metric.MCC``: Matthews' correlation coefficient of two classes."""

    average_field, counts_field = "_average", "_metrics"

    def _micro(self) -> float:
        return float(self.counts.matthewscc())

    def value(self, F: ModuleType, hits: Tensor, predicted: Tensor, positive: Tensor, size: Tensor) -> Tensor:
        """Return the value of one batch, of shape (1,)."""
        # equals true positives * true negatives - false positives * false negatives
        numerator = hits * size - predicted * positive
        one = F.ones_like(size)
        product = one
        for factor in (predicted, positive, size - positive, size - predicted):
            product = product * F.broadcast_maximum(factor, one)  # mxnet leaves out factors of 0
        return numerator / F.sqrt(product)
