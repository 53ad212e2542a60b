"""Pixel accuracy and mean intersection over union, from one confusion matrix kept on the device."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ..maps import first_largest
from .base import DeviceMetric, Pair, Shape, doubles

__all__ = ["DeviceSegmentation"]


class DeviceSegmentation(DeviceMetric):
    """gluoncv's ``SegmentationMetric``: outputs (N, C, ...) against labels (N, ...), labels below 0 ignored.

    The statistics are counts of pixels by label (rows: ignored, the classes, labels past the last class) and
    by predicted class (columns). They are made by scattering ones, with the operator that is the gradient of
    ``gather_nd``: of the ways to count in mxnet, ``histogram`` has no gradient and so cannot stand in a graph
    that is trained, and a product of one-hot matrices or a loop over the classes takes longer with many
    classes.
    """

    def __init__(self, metric: Any) -> None:
        super().__init__(metric)
        self.classes = int(metric.nclass)
        self.width = (self.classes + 2) * self.classes

    def fit(self, label: Shape, output: Shape) -> Pair | None:
        """See :meth:`DeviceMetric.fit`; fewer scores than classes are covered, more are not."""
        same = len(output) > 1 and label == output[:1] + output[2:]
        return partial(self._pair, output[1]) if same and output[1] <= self.classes else None

    def _pair(self, scores: int, F: Any, label: Any, output: Any) -> list[Any]:
        column = F.cast(first_largest(F, output, scores), "int32")
        row = F.clip(F.cast(label, "int32"), a_min=-1, a_max=self.classes) + 1
        cell = F.reshape(row * self.classes + column, (1, -1))
        ones = F.reshape(F.ones_like(cell), (-1,))
        return doubles(F, F._internal._backward_gather_nd(ones, cell, shape=(self.width,)))

    def load(self, totals: np.ndarray) -> None:
        """See :meth:`DeviceMetric.load`."""
        counted = totals.round().astype("int64").reshape(self.classes + 2, self.classes)[1:]
        inter = counted[: self.classes].diagonal()
        self.metric.total_inter = inter.copy()
        self.metric.total_union = counted.sum(axis=0) + counted[: self.classes].sum(axis=1) - inter
        self.metric.total_correct = int(inter.sum())
        self.metric.total_label = int(counted.sum())
