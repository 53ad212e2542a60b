"""Which metrics are known: their device-side path, their direction, the names of their figures.

Classes are known by where they are defined, so that gluoncv need not be installed, and exactly: a subclass
may compute something else.
"""

from __future__ import annotations

from typing import Any

from .accuracy import DeviceAccuracy, DeviceBinaryAccuracy, DeviceTopKAccuracy
from .base import DeviceMetric
from .binary import DeviceF1, DeviceMCC
from .binary_accuracy import BinaryAccuracy
from .loss import DeviceLoss
from .probability import DeviceCrossEntropy, DevicePerplexity
from .regression import DeviceMAE, DeviceMSE, DeviceRMSE
from .segmentation import DeviceSegmentation

__all__ = ["device_metric", "direction", "figure_names"]

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
    SEGMENTATION: "max",
    "gluoncv.utils.metrics.coco_detection.COCODetectionMetric": "max",
    "gluoncv.utils.metrics.voc_detection.VOC07MApMetric": "max",
    "gluoncv.utils.metrics.voc_detection.VOCMApMetric": "max",
}


def device_metric(metric: Any) -> DeviceMetric | None:
    """Find the device-side path of a metric.

    Parameters
    ----------
    metric : mxnet.metric.EvalMetric
        Any metric.

    Returns
    -------
    DeviceMetric or None
        None where the metric must be updated itself: its class is not known, it has options that are not
        covered, or one of its methods was replaced.
    """
    known = DEVICE_METRICS.get(defined_at(metric))
    if known is None or {"update", "get", "reset"} & set(vars(metric)) or not known.covers(metric):
        return None
    return known(metric) if metric.output_names is None and metric.label_names is None else None


def direction(metric: Any) -> str | None:
    """Tell whether lower ("min") or higher ("max") is better; None where the metric is not known."""
    return DIRECTIONS.get(defined_at(metric))


def figure_names(metric: Any) -> list[str] | None:
    """Name the figures of a metric whose ``get()`` returns bare floats; None where it names them itself."""
    return ["pixAcc", "mIoU"] if defined_at(metric) == SEGMENTATION else None


def defined_at(metric: Any) -> str:
    """Give the full name of a metric's class."""
    return f"{type(metric).__module__}.{type(metric).__qualname__}"
