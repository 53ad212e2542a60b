"""CrossEntropy, NegativeLogLikelihood and Perplexity on the device."""

from __future__ import annotations

from functools import partial
from math import prod
from types import ModuleType

from ...protocols import Shape, Tensor
from .base import DeviceMetric, PairGraph, as_float64, float64_sum


class DeviceCrossEntropy(DeviceMetric):
    """``mx.metric.CrossEntropy`` and ``mx.metric.NegativeLogLikelihood``, which compute the same.

    Negative labels count from the end, like NumPy's indices. For a label that is not a class, NumPy raises
    IndexError; a graph cannot raise, so that the metric becomes NaN.
    """

    def _graph_for(self, label: Shape, output: Shape) -> PairGraph | None:
        return partial(self._statistics, classes=output[1]) if one_label_per_sample(label, output) else None

    def _statistics(self, F: ModuleType, label: Tensor, output: Tensor, classes: int) -> list[Tensor]:
        index = F.cast(F.reshape(label, (-1,)), "int32")
        chosen = F.cast(F.pick(F.BlockGrad(output), index, axis=1, mode="wrap"), "float32")
        # 1 for a class, else NaN (0 / 0)
        inside = F.cast((index < classes) * (index >= -classes), "float32")
        loss = -F.log(chosen + self.metric.eps) * (inside / inside)
        return as_float64(F, float64_sum(F, loss), F.size_array(loss))


class DevicePerplexity(DeviceMetric):
    """``mx.metric.Perplexity``: exp of the mean negative log probability, ignored labels left out."""

    def _graph_for(self, label: Shape, output: Shape) -> PairGraph | None:
        known = self.metric.axis in (-1, 1) and one_label_per_sample(label, output)
        return self._statistics if known else None

    def _statistics(self, F: ModuleType, label: Tensor, output: Tensor) -> list[Tensor]:
        label = F.reshape(label, (-1,))
        chosen = F.cast(F.pick(F.BlockGrad(output), F.cast(label, "int32"), axis=1), "float32")
        loss = -F.log(F.broadcast_maximum(chosen, F.ones_like(chosen) * 1e-10))
        if self.metric.ignore_label is None:
            return as_float64(F, float64_sum(F, loss), F.size_array(loss))
        counts = F.cast(label != self.metric.ignore_label, "float32")
        loss = F.where(counts, loss, F.zeros_like(loss))
        return as_float64(F, float64_sum(F, loss), float64_sum(F, counts))


def one_label_per_sample(label: Shape, output: Shape) -> bool:
    """Whether outputs have shape (N, C), and there are N labels, such as (B, T) with N = B * T."""
    return len(output) == 2 and prod(label) == output[0]
