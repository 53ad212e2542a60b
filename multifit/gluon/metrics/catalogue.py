"""The metrics that multifit knows: their device metrics, their directions, the names of their figures.

Classes are known by their full names, so that gluoncv need not be installed. Subclasses are not known: they
may compute something else.
"""

from collections.abc import Hashable, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from ...spec.terms import MetricTerm, Ref
from ...utils.protocols import Shape, Tensor
from ..compat import mx
from .base import Coverage, DeviceCoverage, DeviceMetric
from .classification import (
    BinaryAccuracy,
    DeviceAccuracy,
    DeviceBinaryAccuracy,
    DeviceF1,
    DeviceMCC,
    DeviceTopKAccuracy,
)
from .errors import DeviceCrossEntropy, DeviceLoss, DevicePerplexity, DeviceRegression
from .segmentation import DeviceSegmentation

COVERAGE = f"{Coverage.__module__}.{Coverage.__qualname__}"
BINARY = f"{BinaryAccuracy.__module__}.{BinaryAccuracy.__qualname__}"
SEGMENTATION = "gluoncv.utils.metrics.segmentation.SegmentationMetric"

Device = type[DeviceMetric] | None
KNOWN: dict[str, tuple[str, Device]] = {
    "mxnet.metric.Accuracy": ("max", DeviceAccuracy),
    "mxnet.metric.Caffe": ("min", DeviceLoss),
    "mxnet.metric.CrossEntropy": ("min", DeviceCrossEntropy),
    "mxnet.metric.F1": ("max", DeviceF1),
    "mxnet.metric.Loss": ("min", DeviceLoss),
    "mxnet.metric.MAE": ("min", DeviceRegression),
    "mxnet.metric.MCC": ("max", DeviceMCC),
    "mxnet.metric.MSE": ("min", DeviceRegression),
    "mxnet.metric.NegativeLogLikelihood": ("min", DeviceCrossEntropy),
    "mxnet.metric.PCC": ("max", None),
    "mxnet.metric.PearsonCorrelation": ("max", None),
    "mxnet.metric.Perplexity": ("min", DevicePerplexity),
    "mxnet.metric.RMSE": ("min", DeviceRegression),
    "mxnet.metric.TopKAccuracy": ("max", DeviceTopKAccuracy),
    "mxnet.metric.Torch": ("min", DeviceLoss),
    BINARY: ("max", DeviceBinaryAccuracy),
    COVERAGE: ("max", DeviceCoverage),
    SEGMENTATION: ("max", DeviceSegmentation),
    "gluoncv.utils.metrics.coco_detection.COCODetectionMetric": ("max", None),
    "gluoncv.utils.metrics.voc_detection.VOC07MApMetric": ("max", None),
    "gluoncv.utils.metrics.voc_detection.VOCMApMetric": ("max", None),
}
"""By the full name of a metric's class: which values are better, and its device metric, if there is one."""

BY_VALUE = {"mxnet.metric." + name for name in (
    "Accuracy", "CrossEntropy", "F1", "MAE", "MCC", "MSE", "NegativeLogLikelihood", "PCC",
    "PearsonCorrelation", "Perplexity", "RMSE", "TopKAccuracy",
)} | {BINARY, SEGMENTATION}  # fmt: skip
"""The metrics that compare each value of a label by itself."""

READING = (mx.metric.Accuracy, mx.metric.PCC)
"""The metrics that take outputs of the labels' shape for classes."""


def device_metric(metric: mx.metric.EvalMetric) -> DeviceMetric | None:
    """Return the device metric of a metric; None if the metric itself must be updated.

    This is the case if its class is not known, if it has unsupported options, or if one of its methods was
    replaced.
    """
    if not counts_whole_pass(metric) or metric.output_names is not None or metric.label_names is not None:
        return None
    if type(metric) is mx.metric.CompositeEvalMetric:
        parts = [part for part in map(device_metric, metric.metrics) if part is not None]
        return DeviceComposite(metric, parts) if parts and len(parts) == len(metric.metrics) else None
    device = KNOWN.get(class_name(metric), (None, None))[1]
    return None if device is None else device(metric)


def counts_whole_pass(metric: Any) -> bool:
    """Whether a metric's figure is computed from all samples of a pass at once, as sums or from its arrays.

    This is the case for MXNet's own metrics, subclasses that keep their methods, and those with a device
    metric.
    """
    methods = ("update", "get", "reset")
    if set(methods) & set(getattr(metric, "__dict__", ())):
        return False
    if isinstance(metric, mx.metric.CompositeEvalMetric) and not all(map(counts_whole_pass, metric.metrics)):
        return False
    modules = {getattr(getattr(type(metric), name, None), "__module__", None) for name in methods}
    return modules == {mx.metric.__name__} or KNOWN.get(class_name(metric), (None, None))[1] is not None


class DeviceComposite(DeviceMetric):
    """``mx.metric.CompositeEvalMetric`` of metrics that have device metrics, which are the `parts`."""

    def __init__(self, metric: mx.metric.EvalMetric, parts: Sequence[DeviceMetric]) -> None:
        super().__init__(metric)
        self._parts, self.width = parts, sum(part.width for part in parts)

    def bind(self, labels: Sequence[Shape], outputs: Sequence[Shape], mask: Shape | None = None) -> bool:
        """See :meth:`DeviceMetric.bind`; shapes for which a part needs another number are not supported."""
        are_bound = all(part.bind(labels, outputs, mask) for part in self._parts)
        return are_bound and self.width == sum(part.width for part in self._parts)

    def statistics(
        self, F: ModuleType, labels: Sequence[Tensor], outputs: Sequence[Tensor], mask: Tensor | None = None
    ) -> list[Tensor]:
        """See :meth:`DeviceMetric.statistics`."""
        return [vector for part in self._parts for vector in part.statistics(F, labels, outputs, mask)]

    @property
    def program(self) -> Hashable:
        """See :meth:`DeviceMetric.program`."""
        return tuple(part.program for part in self._parts)

    def load(self, totals: np.ndarray) -> None:
        """See :meth:`DeviceMetric.load`."""
        widths = [part.width for part in self._parts]
        for part, values in zip(self._parts, np.split(totals, np.cumsum(widths)[:-1])):
            part.load(values)


def value_axis(term: MetricTerm, metric: Any, arrays: Mapping[Ref, Any]) -> int | None:
    """Return the axis of the classes of a metric that compares each value of its labels by itself.

    Returns None if the metric takes whole samples. So does one whose labels may be one-hot.
    """
    pairs = [[arrays[ref] for ref in pair] for pair in zip(term.outputs, term.labels)]
    are_pairs = len(term.outputs) == len(term.labels) and len(set(term.args)) == len(term.args)
    if not are_pairs or term.losses or term.spec.transform is not None:
        return None
    parts, are_alike = parts_of(metric), any(output.shape == label.shape for output, label in pairs)
    if are_alike and any(updates_as(part, *READING) for part in parts):
        return None
    axes = {_compared_axis(part) for part in parts}
    return axes.pop() if len(axes) == 1 else None


def parts_of(metric: Any) -> list[Any]:
    """Return the metrics that a CompositeEvalMetric updates; of any other metric, that metric."""
    if not updates_as(metric, mx.metric.CompositeEvalMetric):
        return [metric]
    return [part for each in metric.metrics for part in parts_of(each)]


def _compared_axis(metric: Any) -> int | None:
    """Return the axis of the classes; a subclass that keeps `update` compares as its base does."""
    classes = [each for each in type(metric).__mro__ if "update" in vars(each)]
    by_value = classes and _full_name(classes[0]) in BY_VALUE and "update" not in vars(metric)
    axis = getattr(metric, "axis", 1)
    return axis if by_value and (axis > 0 or axis == -1) else None


def updates_as(metric: Any, *classes: Any) -> bool:
    """Whether a metric is updated as one of the classes; a subclass may replace everything else."""
    update = getattr(type(metric), "update", None)
    return "update" not in getattr(metric, "__dict__", ()) and update in [each.update for each in classes]


def direction(metric: mx.metric.EvalMetric) -> str | None:
    """Return whether lower ("min") or higher ("max") is better; None if the metric is not known."""
    return KNOWN.get(class_name(metric), (getattr(metric, "mode", None), None))[0]


def figure_names(metric: mx.metric.EvalMetric) -> list[str] | None:
    """Return the names of the figures of a metric whose ``get()`` returns values only; None for any other."""
    return ["pixAcc", "mIoU"] if class_name(metric) == SEGMENTATION else None


def class_name(value: object) -> str:
    """Return the full name of an object's class."""
    return _full_name(type(value))


def _full_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
