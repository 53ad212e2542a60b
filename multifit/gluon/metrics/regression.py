"""MAE, MSE and RMSE on the device; each pair's mean error counts once, however many samples it has."""

from __future__ import annotations

from types import ModuleType

from ...protocols import Shape, Tensor
from ..compat import mx
from .base import DeviceMetric, PairGraph, as_float64, float64_sum


class DeviceRegression(DeviceMetric):
    """``mx.metric.MAE``, ``MSE`` and ``RMSE``: the mean over pairs of the mean error, or of its root."""

    per_part = True

    def _graph_for(self, label: Shape, output: Shape) -> PairGraph | None:
        """Return the graph; shapes that NumPy would broadcast are not supported."""
        return self._statistics if as_column(label) == as_column(output) else None

    def _statistics(self, F: ModuleType, label: Tensor, output: Tensor) -> list[Tensor]:
        label = F.cast(F.reshape(label, (0, -1)), "float32")
        output = F.cast(F.reshape(F.BlockGrad(output), (0, -1)), "float32")
        difference = F.elemwise_sub(label, output)
        error = F.abs(difference) if type(self.metric) is mx.metric.MAE else F.square(difference)
        mean = float64_sum(F, error) / F.cast(F.size_array(error), "float64")
        value = F.sqrt(mean) if type(self.metric) is mx.metric.RMSE else mean
        return as_float64(F, value, F.ones_like(mean))


def as_column(shape: Shape) -> Shape:
    """Return the shape that mxnet's regression metrics compare: (N, 1) for (N,)."""
    return (shape[0], 1) if len(shape) == 1 else shape
