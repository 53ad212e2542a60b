"""The accuracies: how many predictions are right."""

from __future__ import annotations

from functools import partial
from typing import Any

from .base import DeviceMetric, Pair, Shape, doubles, inner_size

__all__ = ["DeviceAccuracy", "DeviceBinaryAccuracy", "DeviceTopKAccuracy"]


class Counted(DeviceMetric):
    """What counts where two arrays agree, and all their elements."""

    of_labels = True

    def agreement(self, F: Any, label: Any, said: Any) -> list[Any]:
        """Count where an array and a label agree: (right, all); or return the two, if `small`."""
        if self.small:
            return [said, label]
        right = F.broadcast_equal(said, F.trunc(label))
        return doubles(F, F.sum(F.cast(right, "int32")), F.size_array(right))


class DeviceAccuracy(Counted):
    """``mx.metric.Accuracy``: outputs are classes, or where shapes differ, scores along `axis`."""

    def fit(self, label: Shape, output: Shape) -> Pair | None:
        """See :meth:`DeviceMetric.fit`."""
        if label == output:
            return partial(self._pair, axis=None, flat=self.small and len(label) > 1)
        axis = self.metric.axis + (len(output) if self.metric.axis < 0 else 0)
        if not 0 < axis < len(output) or label[:1] != output[:1]:
            return None
        classes = output[:axis] + output[axis + 1 :]
        same = inner_size(classes) == inner_size(label)
        flat = self.small or len(classes) != len(label)
        return partial(self._pair, axis=axis, flat=flat and len(label) + len(classes) > 2) if same else None

    def _pair(self, F: Any, label: Any, output: Any, axis: int | None, flat: bool) -> list[Any]:
        classes = whole(F, output) if axis is None else F.argmax(output, axis=axis)
        label = F.cast(label, "float32")
        if flat:
            classes, label = F.reshape(classes, (-1,)), F.reshape(label, (-1,))
        return self.agreement(F, label, classes)


class DeviceBinaryAccuracy(Counted):
    """:class:`BinaryAccuracy`: outputs above a threshold against labels of 0 and 1."""

    def fit(self, label: Shape, output: Shape) -> Pair | None:
        """See :meth:`DeviceMetric.fit`."""
        same = label[:1] == output[:1] and inner_size(label) == inner_size(output)
        flat = self.small or len(label) != len(output)
        return partial(self._pair, flat=flat and len(label) + len(output) > 2) if same else None

    def _pair(self, F: Any, label: Any, output: Any, flat: bool) -> list[Any]:
        # in float32, for mxnet casts the threshold to the type of what it is compared with
        true, said = F.cast(label, "float32") > 0.5, F.cast(output, "float32") > self.metric.threshold
        if flat:
            true, said = F.reshape(true, (-1,)), F.reshape(said, (-1,))
        return self.agreement(F, true, said)


class DeviceTopKAccuracy(DeviceMetric):
    """``mx.metric.TopKAccuracy``: the right class is among the k highest scores.

    Equal scores that straddle the k-th place are chosen from by index here and arbitrarily by numpy there, so
    the two may differ on them.
    """

    def fit(self, label: Shape, output: Shape) -> Pair | None:
        """See :meth:`DeviceMetric.fit`."""
        if len(output) != 2 or output[1] < self.metric.top_k:
            return None
        return self._pair if label[:1] == output[:1] and inner_size(label) == 1 else None

    def _pair(self, F: Any, label: Any, output: Any) -> list[Any]:
        best = F.topk(output, k=self.metric.top_k, axis=1, ret_typ="indices", dtype="int32")
        right = F.broadcast_equal(best, F.reshape(F.cast(label, "int32"), (-1, 1)))
        return doubles(F, F.sum(right), F.size_array(label))


def whole(F: Any, numbers: Any) -> Any:
    """Cut off what is behind the point, as a cast to int does."""
    return F.trunc(F.cast(numbers, "float32"))
