"""Pixel accuracy and mean intersection over union, from one confusion matrix kept on the device."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ...threads import omp_threads
from ..ops import first_largest, reaches
from .base import DeviceMetric, Pair, Shape, doubles

__all__ = ["DeviceSegmentation"]

FEW = 6  # classes, up to which inner products are faster on one thread
EXACT = 2**21  # pixels: float32 counts up to 2**24, and a later batch may be larger than the first


class DeviceSegmentation(DeviceMetric):
    """gluoncv's ``SegmentationMetric``: outputs (N, C, ...) against labels (N, ...), labels below 0 ignored.

    The statistics are counts of pixels by label (rows: ignored, the classes, labels past the last class) and
    by predicted class (columns).
    """

    def __init__(self, metric: Any) -> None:
        super().__init__(metric)
        self.classes = int(metric.nclass)
        self.width = (self.classes + 2) * self.classes

    def fit(self, label: Shape, output: Shape) -> Pair | None:
        """See :meth:`DeviceMetric.fit`; fewer scores than classes are covered, more are not."""
        same = len(output) > 1 and label == output[:1] + output[2:]
        if not same or output[1] > self.classes:
            return None
        few = self.classes <= FEW and np.prod(label) <= EXACT and omp_threads() == 1
        return partial(self._multiplied if few else self._scattered, output[1])

    def _scattered(self, scores: int, F: Any, label: Any, output: Any) -> list[Any]:
        """Count by scattering ones, with the operator that is the gradient of ``gather_nd``.

        Of the other ways to count in mxnet, ``histogram`` has no gradient and so cannot stand in a graph that
        is trained, and a product of one-hot matrices or a loop over the classes takes longer.
        """
        column = F.cast(first_largest(F, output, scores), "int32")
        row = F.clip(F.cast(label, "int32"), a_min=-1, a_max=self.classes) + 1
        cell = F.reshape(row * self.classes + column, (1, -1))
        ones = F.reshape(F.ones_like(cell), (-1,))
        return doubles(F, F._internal._backward_gather_nd(ones, cell, shape=(self.width,)))

    def _multiplied(self, scores: int, F: Any, label: Any, output: Any) -> list[Any]:
        """Count by inner products of masks; the predicted classes' are of "this one or a later one"."""
        label = F.reshape(F.cast(F.cast(label, "int32"), "float32"), (-1,))
        rows = [label == each for each in range(self.classes)] + [label >= self.classes]
        columns = [F.ones_like(label)] + [F.reshape(each, (-1,)) for each in reaches(F, output, scores)]
        reached = F.concat(*[F.dot(row, column) for row in rows for column in columns], dim=0)
        beside = F.zeros((len(rows), 1 + self.classes - scores))
        table = F.concat(F.reshape(reached, (len(rows), scores)), beside, dim=1)
        own, later = (F.slice_axis(table, axis=1, begin=i, end=self.classes + i) for i in range(2))
        ignored = F.zeros((1, self.classes))  # nobody reads how many they are
        return doubles(F, F.reshape(F.concat(ignored, own - later, dim=0), (-1,)))

    def load(self, totals: np.ndarray) -> None:
        """See :meth:`DeviceMetric.load`."""
        counted = totals.round().astype("int64").reshape(self.classes + 2, self.classes)[1:]
        inter = counted[: self.classes].diagonal()
        self.metric.total_inter = inter.copy()
        self.metric.total_union = counted.sum(axis=0) + counted[: self.classes].sum(axis=1) - inter
        self.metric.total_correct = int(inter.sum())
        self.metric.total_label = int(counted.sum())
