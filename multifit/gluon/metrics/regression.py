"""MAE, MSE and RMSE on the device: the mean error over all elements of a pass, or the root of that mean."""

from __future__ import annotations

from types import ModuleType
from typing import Sequence

import numpy as np

from ...protocols import Shape, Tensor
from ..compat import mx
from .base import DeviceMetric, PairGraph, as_float64, float64_sum


class DeviceRegression(DeviceMetric):
    """``mx.metric.MAE``, ``MSE`` and ``RMSE``: the mean over pairs of a label and an output of their error.

    The statistics are the sum of the errors and the number of elements, of each pair.
    """

    def bind(self, labels: Sequence[Shape], outputs: Sequence[Shape], samples: int | None = None) -> bool:
        """See :meth:`DeviceMetric.bind`."""
        self.width = 2 * len(labels)
        return super().bind(labels, outputs, samples)

    def _graph_for(self, label: Shape, output: Shape) -> PairGraph | None:
        """Return the graph; shapes that NumPy would broadcast are not supported."""
        return self._statistics if as_column(label) == as_column(output) else None

    def statistics(self, F: ModuleType, labels: Sequence[Tensor], outputs: Sequence[Tensor]) -> list[Tensor]:
        """See :meth:`DeviceMetric.statistics`."""
        return [total for pair in zip(labels, outputs) for total in self._statistics(F, *pair)]

    def _statistics(self, F: ModuleType, label: Tensor, output: Tensor) -> list[Tensor]:
        label = F.cast(F.reshape(label, (0, -1)), "float32")
        output = F.cast(F.reshape(F.BlockGrad(output), (0, -1)), "float32")
        difference = F.elemwise_sub(label, output)
        error = F.abs(difference) if type(self.metric) is mx.metric.MAE else F.square(difference)
        return as_float64(F, float64_sum(F, error), F.size_array(error))

    def load(self, totals: np.ndarray) -> None:
        """See :meth:`DeviceMetric.load`."""
        errors, sizes = totals[::2], totals[1::2]
        means = errors[sizes > 0] / sizes[sizes > 0]
        values = np.sqrt(means) if type(self.metric) is mx.metric.RMSE else means
        self._set(float(values.sum()), len(values))


def as_column(shape: Shape) -> Shape:
    """Return the shape that mxnet's regression metrics compare: (N, 1) for (N,)."""
    return (shape[0], 1) if len(shape) == 1 else shape
