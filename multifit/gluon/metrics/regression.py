"""MAE, MSE and RMSE on the device; each pair's mean error counts once, however many samples it has."""

from __future__ import annotations

from types import ModuleType

from ...protocols import Shape, Tensor
from .base import DeviceMetric, PairGraph, as_float64, float64_sum


class DeviceMAE(DeviceMetric):
    """``mx.metric.MAE``: the mean over pairs of the mean absolute error."""

    per_part = True

    def graph_for(self, label: Shape, output: Shape) -> PairGraph | None:
        """See :meth:`DeviceMetric.graph_for`; shapes that NumPy would broadcast are not supported."""
        return self._statistics if as_column(label) == as_column(output) else None

    def error(self, F: ModuleType, difference: Tensor) -> Tensor:
        """Return the error of each element."""
        return F.abs(difference)

    def finish(self, F: ModuleType, mean: Tensor) -> Tensor:
        """Return the value of one pair, given its mean error, of shape (1,)."""
        return mean

    def _statistics(self, F: ModuleType, label: Tensor, output: Tensor) -> list[Tensor]:
        label = F.cast(F.reshape(label, (0, -1)), "float32")
        output = F.cast(F.reshape(F.BlockGrad(output), (0, -1)), "float32")
        error = self.error(F, F.elemwise_sub(label, output))
        mean = float64_sum(F, error) / F.cast(F.size_array(error), "float64")
        return as_float64(F, self.finish(F, mean), F.ones_like(mean))


class DeviceMSE(DeviceMAE):
    """``mx.metric.MSE``: the mean over pairs of the mean squared error."""

    def error(self, F: ModuleType, difference: Tensor) -> Tensor:
        """Return the error of each element."""
        return F.square(difference)


class DeviceRMSE(DeviceMSE):
    """``mx.metric.RMSE``: the mean over pairs of the root of the mean squared error."""

    def finish(self, F: ModuleType, mean: Tensor) -> Tensor:
        """Return the value of one pair, given its mean error, of shape (1,)."""
        return F.sqrt(mean)


def as_column(shape: Shape) -> Shape:
    """Return the shape that mxnet's regression metrics compare: (N, 1) for (N,)."""
    return (shape[0], 1) if len(shape) == 1 else shape
