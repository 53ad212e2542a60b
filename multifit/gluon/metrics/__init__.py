"""Figures that are summed up where the batch is, so that reading one is the only thing that waits.

Every stock metric of mxnet copies its arrays to the host at each update. Here the same figures are graphs of
plain operators: a device's batch becomes a short vector of sums, vectors add up over devices and batches, and
:meth:`DeviceMetric.load` puts an epoch's totals back into the metric, whose ``get()`` then says what it would
have said had it been updated batch by batch.
"""

from __future__ import annotations

from .base import DeviceMetric
from .binary_accuracy import BinaryAccuracy
from .catalogue import device_metric, direction, figure_names
from .copying import copy_metric

__all__ = ["BinaryAccuracy", "DeviceMetric", "copy_metric", "device_metric", "direction", "figure_names"]
