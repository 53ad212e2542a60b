"""``mx.metric.Loss``: the mean of the values that are given as outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .base import DeviceMetric, Pair, Shape, doubles, total

__all__ = ["DeviceLoss"]


class DeviceLoss(DeviceMetric):
    """``mx.metric.Loss``: the sum of all elements over their number; labels are not looked at."""

    def match(self, labels: Sequence[Any], outputs: Sequence[Any]) -> list[tuple[Any, Any]] | None:
        """See :meth:`DeviceMetric.match`: every output counts by itself."""
        return [((), output) for output in outputs]

    def fit(self, label: Shape, output: Shape) -> Pair | None:
        """See :meth:`DeviceMetric.fit`."""
        return self._pair

    def _pair(self, F: Any, label: Any, output: Any) -> list[Any]:
        values = F.BlockGrad(output)
        return doubles(F, total(F, F.cast(values, "float32")), F.size_array(values))
