"""Losses as metrics, probabilities, and errors of regression."""

from collections.abc import Sequence
from functools import partial
from math import prod
from types import ModuleType
from typing import Any

import numpy as np

from ...utils.protocols import Shape, Tensor
from ..compat import mx
from .base import DeviceMetric, PairGraph, size_of


class DeviceLoss(DeviceMetric):
    """``mx.metric.Loss``: the sum of all output elements, divided by their number; labels are ignored."""

    def _match(self, labels: Sequence[Any], outputs: Sequence[Any]) -> list[tuple[Any, Any]] | None:
        """Pair each output with nothing."""
        return [((), output) for output in outputs]

    def _graph_for(self, label: Shape, output: Shape) -> PairGraph | None:
        return self._statistics

    def _statistics(self, F: ModuleType, label: Tensor, output: Tensor) -> list[Tensor]:
        values = F.BlockGrad(output)
        return [F.sum(F.cast(values, "float32")), size_of(F, values)]


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
        return [F.sum(loss), size_of(F, loss)]


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
            return [F.sum(loss), size_of(F, loss)]
        counts = F.cast(label != self.metric.ignore_label, "float32")
        loss = F.where(counts, loss, F.zeros_like(loss))
        return [F.sum(loss), F.sum(counts)]


def one_label_per_sample(label: Shape, output: Shape) -> bool:
    """Whether outputs have shape (N, C), and there are N labels, such as (B, T) with N = B * T."""
    return len(output) == 2 and prod(label) == output[0]


class DeviceRegression(DeviceMetric):
    """``mx.metric.MAE``, ``MSE`` and ``RMSE``: the mean over pairs of a label and an output of their error.

    The statistics are the sum of the errors and the number of elements, of each pair.
    """

    def bind(self, labels: Sequence[Shape], outputs: Sequence[Shape], mask: Shape | None = None) -> bool:
        """See :meth:`DeviceMetric.bind`."""
        self.width = 2 * len(labels)
        return super().bind(labels, outputs, mask)

    def _graph_for(self, label: Shape, output: Shape) -> PairGraph | None:
        """Return the graph; shapes that NumPy would broadcast are not supported."""
        return self._statistics if as_column(label) == as_column(output) else None

    def statistics(
        self, F: ModuleType, labels: Sequence[Tensor], outputs: Sequence[Tensor], mask: Tensor | None = None
    ) -> list[Tensor]:
        """See :meth:`DeviceMetric.statistics`."""
        return [total for pair in zip(labels, outputs) for total in self._statistics(F, *pair)]

    def _statistics(self, F: ModuleType, label: Tensor, output: Tensor) -> list[Tensor]:
        label = F.cast(F.reshape(label, (0, -1)), "float32")
        output = F.cast(F.reshape(F.BlockGrad(output), (0, -1)), "float32")
        difference = F.elemwise_sub(label, output)
        error = F.abs(difference) if type(self.metric) is mx.metric.MAE else F.square(difference)
        return [F.sum(error), size_of(F, error)]

    def load(self, totals: np.ndarray) -> None:
        """See :meth:`DeviceMetric.load`."""
        errors, sizes = totals[::2], totals[1::2]
        means = errors[sizes > 0] / sizes[sizes > 0]
        values = np.sqrt(means) if type(self.metric) is mx.metric.RMSE else means
        self._set(float(values.sum()), len(values))


def as_column(shape: Shape) -> Shape:
    """Return the shape that MXNet's regression metrics compare: (N, 1) for (N,)."""
    return (shape[0], 1) if len(shape) == 1 else shape
