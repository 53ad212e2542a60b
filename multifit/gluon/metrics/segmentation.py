"""Pixel accuracy and mean intersection over union, from a confusion matrix on the device."""

from types import ModuleType

import numpy as np

from ...utils.protocols import Shape, Tensor
from ..compat import mx
from .base import DeviceMetric, PairGraph


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
        fits = len(output) > 1 and label == output[:1] + output[2:] and output[1] <= self.classes
        return self._statistics if fits else None

    def _statistics(self, F: ModuleType, label: Tensor, output: Tensor) -> list[Tensor]:
        """Count by scattering ones, with the operator that computes the gradient of ``gather_nd``.

        ``histogram`` has no gradient and cannot be used in a graph that is trained. A product of one-hot
        matrices would be slower in MXNet, and so would a loop over the classes.
        """
        row = F.clip(F.cast(label, "int32"), a_min=-1, a_max=self.classes) + 1
        column = F.cast(F.argmax(F.BlockGrad(output), axis=1), "int32")
        cell = F.reshape(row * self.classes + column, (1, -1))
        ones = F.reshape(F.ones_like(cell), (-1,))
        return [F.cast(F._internal._backward_gather_nd(ones, cell, shape=(self.width,)), "float32")]

    def load(self, totals: np.ndarray) -> None:
        """See :meth:`DeviceMetric.load`."""
        counted = totals.round().astype("int64").reshape(self.classes + 2, self.classes)[1:]
        inter = counted[: self.classes].diagonal()
        self.metric.total_inter = inter.copy()
        self.metric.total_union = counted.sum(axis=0) + counted[: self.classes].sum(axis=1) - inter
        self.metric.total_correct = int(inter.sum())
        self.metric.total_label = int(counted.sum())
