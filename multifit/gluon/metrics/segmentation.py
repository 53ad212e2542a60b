"""Pixel accuracy and mean intersection over union, from a confusion matrix on the device."""

from functools import partial
from math import prod
from types import ModuleType

import numpy as np

from ...protocols import Shape, Tensor
from ...threads import omp_threads
from ..compat import mx
from ..ops import first_largest, reaches
from .base import DeviceMetric, PairGraph, as_float64

MAX_CLASSES = 6  # up to this many classes, inner products are faster on one thread
MAX_PIXELS = 2**21  # float32 counts up to 2**24, and later batches may be larger than the first


class DeviceSegmentation(DeviceMetric):
    """gluoncv's ``SegmentationMetric``: outputs (N, C, ...) against labels (N, ...), labels below 0 ignored.

    The statistics are a table that counts pixels: by label in the rows (ignored, each class, past the last
    class), and by predicted class in the columns.
    """

    def __init__(self, metric: mx.metric.EvalMetric) -> None:
        super().__init__(metric)
        self.classes = int(metric.nclass)
        self.width = (self.classes + 2) * self.classes

    def _graph_for(self, label: Shape, output: Shape) -> PairGraph | None:
        """Return the graph; outputs may have fewer scores than classes, but not more."""
        same = len(output) > 1 and label == output[:1] + output[2:]
        if not same or output[1] > self.classes:
            return None
        few = self.classes <= MAX_CLASSES and prod(label) <= MAX_PIXELS
        return partial(self._count, few, output[1])

    def _count(self, few: bool, scores: int, F: ModuleType, label: Tensor, output: Tensor) -> list[Tensor]:
        """Count in the fastest way."""
        few = few and omp_threads() == 1
        return (self._by_products if few else self._by_scattering)(scores, F, label, output)

    def _row_and_column(self, scores: int, F: ModuleType, label: Tensor, output: Tensor) -> list[Tensor]:
        row = F.clip(F.cast(label, "int32"), a_min=-1, a_max=self.classes) + 1
        return [row, F.cast(first_largest(F, output, scores), "int32")]

    def _by_scattering(self, scores: int, F: ModuleType, label: Tensor, output: Tensor) -> list[Tensor]:
        """Count by scattering ones, with the operator that computes the gradient of ``gather_nd``.

        ``histogram`` has no gradient and cannot be used in a graph that is trained. A product of one-hot
        matrices would be slower in MXNet, and so would a loop over the classes.
        """
        row, column = self._row_and_column(scores, F, label, output)
        cell = F.reshape(row * self.classes + column, (1, -1))
        ones = F.reshape(F.ones_like(cell), (-1,))
        return as_float64(F, F._internal._backward_gather_nd(ones, cell, shape=(self.width,)))

    def _by_products(self, scores: int, F: ModuleType, label: Tensor, output: Tensor) -> list[Tensor]:
        """Count by inner products of masks; those of predictions are 1 for "this class or a later one"."""
        label = F.reshape(F.cast(F.cast(label, "int32"), "float32"), (-1,))
        rows = [label == each for each in range(self.classes)] + [label >= self.classes]
        columns = [F.ones_like(label)] + [F.reshape(each, (-1,)) for each in reaches(F, output, scores)]
        reached = F.concat(*[F.dot(row, column) for row in rows for column in columns], dim=0)
        beside = F.zeros((len(rows), 1 + self.classes - scores))
        table = F.concat(F.reshape(reached, (len(rows), scores)), beside, dim=1)
        this, later = (F.slice_axis(table, axis=1, begin=i, end=self.classes + i) for i in range(2))
        ignored = F.zeros((1, self.classes))  # this row is not used
        return as_float64(F, F.reshape(F.concat(ignored, this - later, dim=0), (-1,)))

    def load(self, totals: np.ndarray) -> None:
        """See :meth:`DeviceMetric.load`."""
        counted = totals.round().astype("int64").reshape(self.classes + 2, self.classes)[1:]
        inter = counted[: self.classes].diagonal()
        self.metric.total_inter = inter.copy()
        self.metric.total_union = counted.sum(axis=0) + counted[: self.classes].sum(axis=1) - inter
        self.metric.total_correct = int(inter.sum())
        self.metric.total_label = int(counted.sum())
