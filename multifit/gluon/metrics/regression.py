"""MAE, MSE and RMSE: each pair's mean error counts once, however many samples it has."""

from __future__ import annotations

from typing import Any

from .base import DeviceMetric, Pair, Shape, doubles, total

__all__ = ["DeviceMAE", "DeviceMSE", "DeviceRMSE"]


class DeviceMAE(DeviceMetric):
    """``mx.metric.MAE``: the mean over pairs of the mean absolute error."""

    def fit(self, label: Shape, output: Shape) -> Pair | None:
        """See :meth:`DeviceMetric.fit`; shapes that numpy would have to broadcast are not covered."""
        return self._pair if column(label) == column(output) else None

    def error(self, F: Any, difference: Any) -> Any:
        """Measure one element's error."""
        return F.abs(difference)

    def finish(self, F: Any, mean: Any) -> Any:
        """Turn one pair's mean error, of shape (1,), into its figure."""
        return mean

    def _pair(self, F: Any, label: Any, output: Any) -> list[Any]:
        label = F.cast(F.reshape(label, (0, -1)), "float32")
        output = F.cast(F.reshape(F.BlockGrad(output), (0, -1)), "float32")
        error = self.error(F, F.elemwise_sub(label, output))
        mean = total(F, error) / F.cast(F.size_array(error), "float64")
        return doubles(F, self.finish(F, mean), F.ones_like(mean))


class DeviceMSE(DeviceMAE):
    """``mx.metric.MSE``: the mean over pairs of the mean squared error."""

    def error(self, F: Any, difference: Any) -> Any:
        """Measure one element's error."""
        return F.square(difference)


class DeviceRMSE(DeviceMSE):
    """``mx.metric.RMSE``: the mean over pairs of the root of the mean squared error."""

    def finish(self, F: Any, mean: Any) -> Any:
        """Turn one pair's mean error, of shape (1,), into its figure."""
        return F.sqrt(mean)


def column(shape: Shape) -> Shape:
    """Give the shape that mxnet's regression metrics compare: (N,) is taken as (N, 1)."""
    return (shape[0], 1) if len(shape) == 1 else shape
