"""Accuracies on the device: the share of predictions that are right."""

from __future__ import annotations

from functools import partial
from math import prod
from types import ModuleType

from ...protocols import Shape, Tensor
from .base import DeviceMetric, PairGraph, as_float64, sample_size


class MatchCount(DeviceMetric):
    """The base of metrics that count elements in which predictions and labels agree, among all elements."""

    counts_labels = True

    def count_matches(self, F: ModuleType, label: Tensor, prediction: Tensor) -> list[Tensor]:
        """Return (matches, elements); if `returns_rows`, return the arrays for others to count."""
        if self.returns_rows:
            return [prediction, label]
        matches = F.broadcast_equal(prediction, F.trunc(label))
        return as_float64(F, F.sum(F.cast(matches, "int32")), F.size_array(matches))


class DeviceAccuracy(MatchCount):
    """``mx.metric.Accuracy``: outputs are classes, or, if shapes differ, scores along `axis`."""

    def _graph_for(self, label: Shape, output: Shape) -> PairGraph | None:
        if label == output:
            return partial(self._statistics, axis=None, flat=self.returns_rows and len(label) > 1)
        axis = self.metric.axis + (len(output) if self.metric.axis < 0 else 0)
        classes = output[:axis] + output[axis + 1 :]
        if not 0 < axis < len(output) or prod(classes) != prod(label):
            return None
        if len(classes) == len(label) and classes[0] != label[0]:  # unlike (B * T,) and (B, T)
            return None
        flat = (self.returns_rows or len(classes) != len(label)) and len(label) + len(classes) > 2
        return partial(self._statistics, axis=axis, flat=flat)

    def _statistics(
        self, F: ModuleType, label: Tensor, output: Tensor, axis: int | None, flat: bool
    ) -> list[Tensor]:
        # classes are truncated, as a cast to int does
        classes = F.trunc(F.cast(output, "float32")) if axis is None else F.argmax(output, axis=axis)
        label = F.cast(label, "float32")
        if flat:
            classes, label = F.reshape(classes, (-1,)), F.reshape(label, (-1,))
        return self.count_matches(F, label, classes)


class DeviceBinaryAccuracy(MatchCount):
    """:class:`BinaryAccuracy`: outputs above a threshold, against labels of 0 and 1."""

    def _graph_for(self, label: Shape, output: Shape) -> PairGraph | None:
        if label[:1] != output[:1] or sample_size(label) != sample_size(output):
            return None
        flat = (self.returns_rows or len(label) != len(output)) and len(label) + len(output) > 2
        return partial(self._statistics, flat=flat)

    def _statistics(self, F: ModuleType, label: Tensor, output: Tensor, flat: bool) -> list[Tensor]:
        # compared in float32, because mxnet casts the threshold to the dtype of the array
        positive = F.cast(label, "float32") > 0.5
        prediction = F.cast(output, "float32") > self.metric.threshold
        if flat:
            positive, prediction = F.reshape(positive, (-1,)), F.reshape(prediction, (-1,))
        return self.count_matches(F, positive, prediction)


class DeviceTopKAccuracy(DeviceMetric):
    """``mx.metric.TopKAccuracy``: the right class is among the k highest scores.

    If scores around the k-th place are equal, this metric chooses those with the lowest index, but NumPy
    chooses arbitrary ones, so that the two can differ.
    """

    def _graph_for(self, label: Shape, output: Shape) -> PairGraph | None:
        if len(output) != 2 or output[1] < self.metric.top_k:
            return None
        return self._statistics if label[:1] == output[:1] and sample_size(label) == 1 else None

    def _statistics(self, F: ModuleType, label: Tensor, output: Tensor) -> list[Tensor]:
        best = F.topk(output, k=self.metric.top_k, axis=1, ret_typ="indices", dtype="int32")
        matches = F.broadcast_equal(best, F.reshape(F.cast(label, "int32"), (-1, 1)))
        return as_float64(F, F.sum(matches), F.size_array(label))
