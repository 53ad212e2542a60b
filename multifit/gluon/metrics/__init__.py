"""Metrics that are computed on the device, so that only reading a figure waits for the device.

Every stock metric of mxnet copies its arrays to the host at each update. Here, the same metrics are graphs of
plain operators: a device's batch becomes a short vector of sums, the vectors are added up over devices and
batches, and :meth:`DeviceMetric.load` writes a pass's totals into the metric. Its ``get()`` then returns what
it would return after a single update with all samples of the pass, however they were cut into batches.
"""

from .base import DeviceMetric
from .catalogue import device_metric, direction, figure_names
from .classification import BinaryAccuracy
from .host import copy_metric

__all__ = ["BinaryAccuracy", "DeviceMetric", "copy_metric", "device_metric", "direction", "figure_names"]
