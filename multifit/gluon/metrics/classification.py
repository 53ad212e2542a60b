"""Accuracy, and metrics of two classes."""

from collections.abc import Sequence
from functools import partial
from math import prod
from types import ModuleType
from typing import Any

import numpy as np

from ...utils.arguments import checked
from ...utils.errors import SpecError
from ...utils.protocols import Array, Shape, Tensor
from ..compat import mx
from .base import DeviceMetric, PairGraph, sample_size, size_of

UNCLEAR = (
    "the outputs have the shape of the labels, but they hold no classes (whole numbers), and the labels are "
    "not one-hot or other probabilities along the metric's axis; to compare value by value, give "
    "multifit.metrics.BinaryAccuracy; to compare the largest ones, transform=lambda scores, label: "
    "(label.argmax(axis=1), scores)"
)


class MatchCount(DeviceMetric):
    """The base of metrics that count elements in which predictions and labels agree, among all elements."""

    takes_mask = True

    def _count(
        self, F: ModuleType, label: Tensor, predicted: Tensor, mask: Tensor | None = None, flat: bool = False
    ) -> list[Tensor]:
        """Return (matches, elements), of those that a mask leaves; all are float32."""
        if flat or mask is not None:
            label, predicted = F.reshape(label, (-1,)), F.reshape(predicted, (-1,))
        matches = F.broadcast_equal(predicted, label)
        if mask is None:
            return [F.sum(matches), size_of(F, matches)]
        mask = F.reshape(mask, (-1,))
        return [F.sum(matches * mask), F.sum(mask)]


class DeviceAccuracy(MatchCount):
    """``mx.metric.Accuracy``: outputs are scores along `axis`, for labels that have no such axis.

    If all labels have the shape of their outputs, all samples together decide what these are: see
    :func:`read_classes`. The statistics are then, for arrays read as probabilities and read as classes, the
    matches, the elements, and the elements that rule this out.
    """

    def bind(self, labels: Sequence[Shape], outputs: Sequence[Shape], mask: Shape | None = None) -> bool:
        """See :meth:`DeviceMetric.bind`."""
        self._are_alike = list(labels) == list(outputs)
        self.width = 6 if self._are_alike else 2
        return not (self._are_alike and mask is not None) and super().bind(labels, outputs, mask)

    def _graph_for(self, label: Shape, output: Shape) -> PairGraph | None:
        if label == output:
            axis = _axis_of_several(label, self.metric.axis)
            return partial(self._both_readings, axis=axis) if self._are_alike else None
        axis = self.metric.axis + (len(output) if self.metric.axis < 0 else 0)
        classes = output[:axis] + output[axis + 1 :]
        if not 0 < axis < len(output) or prod(classes) != prod(label):
            return None
        if len(classes) == len(label) and classes[0] != label[0]:  # unlike (B * T,) and (B, T)
            return None
        return partial(self._statistics, axis=axis, flat=len(classes) != len(label))

    def _statistics(
        self, F: ModuleType, label: Tensor, output: Tensor, mask: Any = None, *, axis: int, flat: bool
    ) -> list[Tensor]:
        label = F.trunc(F.cast(label, "float32"))  # as MXNet does
        return self._count(F, label, F.argmax(output, axis=axis), mask, flat)

    def _both_readings(self, F: ModuleType, label: Tensor, output: Tensor, axis: int | None) -> list[Tensor]:
        label, output = F.cast(label, "float32"), F.cast(F.BlockGrad(output), "float32")
        truncated = F.trunc(output)
        as_classes = [*self._count(F, F.trunc(label), truncated), F.sum(truncated != output)]
        if axis is None:
            none = F.zeros_like(as_classes[1])
            return [none, none, as_classes[1], *as_classes]
        wrong = F.sum(1 - _are_probabilities(F, label, axis))
        return [*self._count(F, F.argmax(label, axis=axis), F.argmax(output, axis=axis)), wrong, *as_classes]

    def load(self, totals: np.ndarray) -> None:
        """See :meth:`DeviceMetric.load`; raises SpecError if the totals do not say what to compare."""
        if len(totals) == 6:
            totals = totals[3:] if totals[2] else totals[:3]
            if totals[2]:
                raise SpecError(UNCLEAR)
        super().load(totals)


def read_classes(label: Any, output: Any, axis: int) -> Any | None:
    """Return a label to compare with an output, both NDArrays; None if it is not clear what they hold.

    If they have one shape, MXNet truncates both to classes, scores too. But labels that are probabilities,
    such as one-hot ones, are those of classes along `axis`: the label is then the class with the highest one.
    Otherwise, outputs that are whole numbers are classes. This waits for the device.
    """
    several = _axis_of_several(label.shape, axis) if label.shape == output.shape else None
    if several is not None and bool(_are_probabilities(mx.nd, label.astype("float32"), several).min() == 1):
        return mx.nd.argmax(label, axis=several)
    is_clear = label.shape != output.shape or bool((mx.nd.trunc(output) == output).min() == 1)
    return label if is_clear else None


def _axis_of_several(shape: Shape, axis: int) -> int | None:
    """Return a class axis, counted from the first; None if arrays of this shape have no two classes there."""
    axis += len(shape) if axis < 0 else 0
    return axis if 0 < axis < len(shape) and shape[axis] > 1 else None


def _are_probabilities(F: ModuleType, label: Any, axis: int) -> Any:
    """Return 1 where values along an axis are at least 0 and add up to 1, else 0."""
    sums, least = F.sum(label, axis=axis), F.min(label, axis=axis)
    return (F.abs(sums - 1) < 1e-2) * (least >= 0)


class DeviceBinaryAccuracy(MatchCount):
    """:class:`BinaryAccuracy`: outputs above a threshold, against labels of 0 and 1."""

    def _graph_for(self, label: Shape, output: Shape) -> PairGraph | None:
        if label[:1] != output[:1] or sample_size(label) != sample_size(output):
            return None
        return partial(self._statistics, flat=len(label) != len(output))

    def _statistics(
        self, F: ModuleType, label: Tensor, output: Tensor, mask: Any = None, *, flat: bool
    ) -> list[Tensor]:
        # compared in float32, because MXNet casts the threshold to the dtype of the array
        positive = F.cast(label, "float32") > 0.5
        return self._count(F, positive, F.cast(output, "float32") > self.metric.threshold, mask, flat)


class DeviceTopKAccuracy(DeviceMetric):
    """``mx.metric.TopKAccuracy``: the right class is among the k highest scores.

    If scores around the k-th place are equal, this metric chooses those with the lowest index, but NumPy
    chooses arbitrary ones, so that the two can differ.
    """

    def _graph_for(self, label: Shape, output: Shape) -> PairGraph | None:
        if len(output) != 2 or output[1] < self.metric.top_k:
            return None
        return self._statistics if label[:1] == output[:1] and sample_size(label) == 1 else None

    def _statistics(self, F: ModuleType, label: Tensor, output: Tensor) -> list[Tensor]:
        best = F.topk(output, k=self.metric.top_k, axis=1, ret_typ="indices", dtype="int32")
        matches = F.broadcast_equal(best, F.reshape(F.cast(label, "int32"), (-1, 1)))
        return [F.cast(F.sum(matches), "float32"), size_of(F, label)]


class BinaryAccuracy(mx.metric.EvalMetric):
    """The share of elements in which ``output > threshold`` agrees with a label of 0 or 1.

    ``mx.metric.Accuracy`` takes the argmax over axis 1, which is always 0 for one logit of shape (N, 1).

    Parameters
    ----------
    threshold : float, default 0.0
        Outputs above it predict 1. The default is for logits; use 0.5 for probabilities.
    name : str, default "binary_accuracy"
        Name of the figure.
    output_names, label_names : list of str, optional
        As in ``mx.metric.EvalMetric``.
    """

    @checked
    def __init__(
        self,
        threshold: float = 0.0,
        name: str = "binary_accuracy",
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
    ) -> None:
        super().__init__(
            name,
            threshold=threshold,
            output_names=output_names,
            label_names=label_names,
            has_global_stats=True,
        )
        self.threshold = threshold

    def update(self, labels: Array | list[Array], preds: Array | list[Array]) -> None:
        """Add one batch: labels of 0 and 1 (above 0.5 counts as 1), and as many outputs.

        Arrays may have shape (N,), (N, 1) or (N, ...); lists of arrays are compared pair by pair. Raises
        ValueError if the numbers of arrays or of elements differ.
        """
        for label, pred in zip(*mx.metric.check_label_shapes(labels, preds, wrap=True)):
            positive = label.asnumpy().ravel() > 0.5
            predicted = pred.asnumpy().ravel() > self.threshold
            mx.metric.check_label_shapes(positive, predicted, shape=True)
            right, size = int((positive == predicted).sum()), positive.size
            self.sum_metric += right
            self.global_sum_metric += right
            self.num_inst += size
            self.global_num_inst += size


class DeviceF1(DeviceMetric):
    """``mx.metric.F1``: the harmonic mean of precision and recall of class 1.

    With ``average="macro"`` too, which in MXNet is a mean over updates. The statistics are the numbers of
    true positives, predicted positives, positive labels, samples, and labels of a third value, which MXNet
    does not allow.
    """

    width = 5
    counts_field = "metrics"  # of the metric

    def __init__(self, metric: mx.metric.EvalMetric) -> None:
        super().__init__(metric)
        self.counts: Any = getattr(metric, self.counts_field)

    def _value(self) -> float:
        """Return the value computed from the metric's four counts."""
        return float(self.counts.fscore)

    def _graph_for(self, label: Shape, output: Shape) -> PairGraph | None:
        is_column = len(output) == 2 and label[:1] == output[:1] and sample_size(label) == 1
        return self._statistics if is_column else None

    def _statistics(self, F: ModuleType, label: Tensor, output: Tensor) -> list[Tensor]:
        predicted = F.cast(F.argmax(output, axis=1), "int32") == 1
        label = F.reshape(F.cast(label, "int32"), (-1,))
        positive = label == 1
        third = F.broadcast_not_equal(label, F.min(label)) * F.broadcast_not_equal(label, F.max(label))
        counts = [F.sum(array) for array in (predicted * positive, predicted, positive, third)]
        hits, answers, positives, others = [F.cast(count, "float32") for count in counts]
        return [hits, answers, positives, size_of(F, label), others]

    def load(self, totals: np.ndarray) -> None:
        """See :meth:`DeviceMetric.load`; raises ValueError for labels of more than two values."""
        if totals[4] > 0:
            raise ValueError(f"{type(self.counts).__name__} currently only supports binary classification.")
        self.counts.reset_stats()
        hits, predicted, positive, size = (int(round(value)) for value in totals[:4])
        counts = self.counts
        counts.true_positives = counts.global_true_positives = hits
        counts.false_positives = counts.global_false_positives = predicted - hits
        counts.false_negatives = counts.global_false_negatives = positive - hits
        counts.true_negatives = counts.global_true_negatives = size - predicted - positive + hits
        self._set(self._value() * size, size)


class DeviceMCC(DeviceF1):
    """``mx.metric.MCC``: Matthews' correlation coefficient of two classes."""

    counts_field = "_metrics"

    def _value(self) -> float:
        return float(self.counts.matthewscc())
