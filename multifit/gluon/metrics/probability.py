"""CrossEntropy, NegativeLogLikelihood and Perplexity: from the probability that the right class was given."""

from __future__ import annotations

from functools import partial
from typing import Any

from .base import DeviceMetric, Pair, Shape, doubles, inner_size, total

__all__ = ["DeviceCrossEntropy", "DevicePerplexity"]


class DeviceCrossEntropy(DeviceMetric):
    """``mx.metric.CrossEntropy`` and ``mx.metric.NegativeLogLikelihood``, which compute the same.

    Labels count from the end where they are negative, as numpy's do. Where one lies outside of the classes,
    numpy raises IndexError; a graph cannot, so the figure becomes NaN.
    """

    def fit(self, label: Shape, output: Shape) -> Pair | None:
        """See :meth:`DeviceMetric.fit`."""
        return partial(self._pair, classes=output[1]) if one_label_a_row(label, output) else None

    def _pair(self, F: Any, label: Any, output: Any, classes: int) -> list[Any]:
        index = F.cast(F.reshape(label, (-1,)), "int32")
        chosen = F.cast(F.pick(F.BlockGrad(output), index, axis=1, mode="wrap"), "float32")
        # 1 inside of the classes, NaN (0 / 0) outside
        inside = F.cast((index < classes) * (index >= -classes), "float32")
        loss = -F.log(chosen + self.metric.eps) * (inside / inside)
        return doubles(F, total(F, loss), F.size_array(loss))


class DevicePerplexity(DeviceMetric):
    """``mx.metric.Perplexity``: exp of the mean negative log probability, without the ignored labels."""

    @classmethod
    def covers(cls, metric: Any) -> bool:
        """See :meth:`DeviceMetric.covers`."""
        return metric.axis in (-1, 1)

    def fit(self, label: Shape, output: Shape) -> Pair | None:
        """See :meth:`DeviceMetric.fit`."""
        return self._pair if one_label_a_row(label, output) else None

    def _pair(self, F: Any, label: Any, output: Any) -> list[Any]:
        label = F.reshape(label, (-1,))
        chosen = F.cast(F.pick(F.BlockGrad(output), F.cast(label, "int32"), axis=1), "float32")
        loss = -F.log(F.broadcast_maximum(chosen, F.ones_like(chosen) * 1e-10))
        if self.metric.ignore_label is None:
            return doubles(F, total(F, loss), F.size_array(loss))
        counts = F.cast(label != self.metric.ignore_label, "float32")
        return doubles(F, total(F, F.where(counts, loss, F.zeros_like(loss))), total(F, counts))


def one_label_a_row(label: Shape, output: Shape) -> bool:
    """Whether outputs are (N, C) and labels N values."""
    return len(output) == 2 and label[:1] == output[:1] and inner_size(label) == 1
