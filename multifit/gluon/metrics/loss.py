"""``mx.metric.Loss`` on the device: the mean of all output values."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

from ...protocols import Shape, Tensor
from .base import DeviceMetric, PairGraph, as_float64, float64_sum


class DeviceLoss(DeviceMetric):
    """``mx.metric.Loss``: the sum of all output elements, divided by their number; labels are ignored."""

    def _match(self, labels: Sequence[Any], outputs: Sequence[Any]) -> list[tuple[Any, Any]] | None:
        """Pair each output with nothing."""
        return [((), output) for output in outputs]

    def _graph_for(self, label: Shape, output: Shape) -> PairGraph | None:
        return self._statistics

    def _statistics(self, F: ModuleType, label: Tensor, output: Tensor) -> list[Tensor]:
        values = F.BlockGrad(output)
        return as_float64(F, float64_sum(F, F.cast(values, "float32")), F.size_array(values))
