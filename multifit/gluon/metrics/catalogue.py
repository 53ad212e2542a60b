"""The metrics that multifit knows: their device metrics, their directions, the names of their figures.

Classes are known by their full names, so that gluoncv need not be installed. Subclasses are not known: they
may compute something else.
"""

from __future__ import annotations

from ..compat import mx
from .accuracy import DeviceAccuracy, DeviceBinaryAccuracy, DeviceTopKAccuracy
from .base import DeviceMetric
from .binary import DeviceF1, DeviceMCC
from .binary_accuracy import BinaryAccuracy
from .loss import DeviceLoss
from .present import Coverage, DeviceCoverage
from .probability import DeviceCrossEntropy, DevicePerplexity
from .regression import DeviceMAE, DeviceMSE, DeviceRMSE
from .segmentation import DeviceSegmentation

COVERAGE = f"{Coverage.__module__}.{Coverage.__qualname__}"
BINARY = f"{BinaryAccuracy.__module__}.{BinaryAccuracy.__qualname__}"
SEGMENTATION = "gluoncv.utils.metrics.segmentation.SegmentationMetric"

DEVICE_METRICS: dict[str, type[DeviceMetric]] = {
    "mxnet.metric.Accuracy": DeviceAccuracy,
    "mxnet.metric.CrossEntropy": DeviceCrossEntropy,
    "mxnet.metric.F1": DeviceF1,
    "mxnet.metric.Loss": DeviceLoss,
    "mxnet.metric.MAE": DeviceMAE,
    "mxnet.metric.MCC": DeviceMCC,
    "mxnet.metric.MSE": DeviceMSE,
    "mxnet.metric.NegativeLogLikelihood": DeviceCrossEntropy,
    "mxnet.metric.Perplexity": DevicePerplexity,
    "mxnet.metric.RMSE": DeviceRMSE,
    "mxnet.metric.TopKAccuracy": DeviceTopKAccuracy,
    BINARY: DeviceBinaryAccuracy,
    COVERAGE: DeviceCoverage,
    SEGMENTATION: DeviceSegmentation,
}

DIRECTIONS: dict[str, str] = {
    "mxnet.metric.Accuracy": "max",
    "mxnet.metric.Caffe": "min",
    "mxnet.metric.CrossEntropy": "min",
    "mxnet.metric.F1": "max",
    "mxnet.metric.Loss": "min",
    "mxnet.metric.MAE": "min",
    "mxnet.metric.MCC": "max",
    "mxnet.metric.MSE": "min",
    "mxnet.metric.NegativeLogLikelihood": "min",
    "mxnet.metric.PCC": "max",
    "mxnet.metric.PearsonCorrelation": "max",
    "mxnet.metric.Perplexity": "min",
    "mxnet.metric.RMSE": "min",
    "mxnet.metric.TopKAccuracy": "max",
    "mxnet.metric.Torch": "min",
    BINARY: "max",
    COVERAGE: "max",
    SEGMENTATION: "max",
    "gluoncv.utils.metrics.coco_detection.COCODetectionMetric": "max",
    "gluoncv.utils.metrics.voc_detection.VOC07MApMetric": "max",
    "gluoncv.utils.metrics.voc_detection.VOCMApMetric": "max",
}


def device_metric(metric: mx.metric.EvalMetric) -> DeviceMetric | None:
    """Return the device metric of a metric; None if the metric itself must be updated.

    That is so if its class is not known, has unsupported options, or one of its methods was replaced.
    """
    kind = DEVICE_METRICS.get(class_name(metric))
    if kind is None or {"update", "get", "reset"} & set(vars(metric)):
        return None
    return kind(metric) if metric.output_names is None and metric.label_names is None else None


def direction(metric: mx.metric.EvalMetric) -> str | None:
    """Return whether lower ("min") or higher ("max") is better; None if the metric is not known."""
    return DIRECTIONS.get(class_name(metric))


def figure_names(metric: mx.metric.EvalMetric) -> list[str] | None:
    """Return the names of the figures of a metric whose ``get()`` returns values only; None for any other."""
    return ["pixAcc", "mIoU"] if class_name(metric) == SEGMENTATION else None


def class_name(value: object) -> str:
    """Return the full name of an object's class."""
    return f"{type(value).__module__}.{type(value).__qualname__}"
