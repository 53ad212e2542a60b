"""The metrics that multifit knows: their device metrics, their directions, the names of their figures.

Classes are known by their full names, so that gluoncv need not be installed. Subclasses are not known: they
may compute something else.
"""

from __future__ import annotations

from typing import Optional

from ..compat import mx
from .accuracy import DeviceAccuracy, DeviceBinaryAccuracy, DeviceTopKAccuracy
from .base import DeviceMetric
from .binary import DeviceF1, DeviceMCC
from .binary_accuracy import BinaryAccuracy
from .loss import DeviceLoss
from .present import Coverage, DeviceCoverage
from .probability import DeviceCrossEntropy, DevicePerplexity
from .regression import DeviceRegression
from .segmentation import DeviceSegmentation

COVERAGE = f"{Coverage.__module__}.{Coverage.__qualname__}"
BINARY = f"{BinaryAccuracy.__module__}.{BinaryAccuracy.__qualname__}"
SEGMENTATION = "gluoncv.utils.metrics.segmentation.SegmentationMetric"

Device = Optional[type[DeviceMetric]]
KNOWN: dict[str, tuple[str, Device]] = {
    "mxnet.metric.Accuracy": ("max", DeviceAccuracy),
    "mxnet.metric.Caffe": ("min", None),
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
    "mxnet.metric.Torch": ("min", None),
    BINARY: ("max", DeviceBinaryAccuracy),
    COVERAGE: ("max", DeviceCoverage),
    SEGMENTATION: ("max", DeviceSegmentation),
    "gluoncv.utils.metrics.coco_detection.COCODetectionMetric": ("max", None),
    "gluoncv.utils.metrics.voc_detection.VOC07MApMetric": ("max", None),
    "gluoncv.utils.metrics.voc_detection.VOCMApMetric": ("max", None),
}
"""By the full name of a metric's class: which values are better, and its device metric, if there is one."""


def device_metric(metric: mx.metric.EvalMetric) -> DeviceMetric | None:
    """Return the device metric of a metric; None if the metric itself must be updated.

    This is the case if its class is not known, if it has unsupported options, or if one of its methods was
    replaced.
    """
    _, kind = KNOWN.get(class_name(metric), (None, None))
    if kind is None or {"update", "get", "reset"} & set(vars(metric)):
        return None
    return kind(metric) if metric.output_names is None and metric.label_names is None else None


def direction(metric: mx.metric.EvalMetric) -> str | None:
    """Return whether lower ("min") or higher ("max") is better; None if the metric is not known."""
    return KNOWN.get(class_name(metric), (None, None))[0]


def figure_names(metric: mx.metric.EvalMetric) -> list[str] | None:
    """Return the names of the figures of a metric whose ``get()`` returns values only; None for any other."""
    return ["pixAcc", "mIoU"] if class_name(metric) == SEGMENTATION else None


def class_name(value: object) -> str:
    """Return the full name of an object's class."""
    return f"{type(value).__module__}.{type(value).__qualname__}"
