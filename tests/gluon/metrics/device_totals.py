"""Run device metrics as a stage does, and compare them with the metrics themselves."""

from typing import Any

import numpy as np

from multifit.gluon.metrics import copy_metric, device_metric
from multifit.gluon.step.loss_graph import _count_equal

import mxnet as mx  # isort: skip

Batch = list  # per device: (labels, outputs), each a list of NDArrays


class StatisticsGraph(mx.gluon.HybridBlock):
    """A device metric as one graph, called with the labels and then the outputs."""

    def __init__(self, device: Any, labels: int) -> None:
        super().__init__()
        self.device = device
        self.labels = labels

    def hybrid_forward(self, F: Any, size: Any, *slots: Any) -> Any:
        pieces = self.device.statistics(F, list(slots[: self.labels]), list(slots[self.labels :]))
        if self.device.returns_rows:
            pieces = [_count_equal(F, pieces), size]
        return F.concat(*pieces, dim=0) if len(pieces) > 1 else pieces[0]


def shapes(arrays: list) -> list[tuple]:
    return [array.shape for array in arrays]


def device_totals(device: Any, batches: list[Batch], traced: bool) -> np.ndarray:
    """Sum a device metric's statistics over devices and batches."""
    labels, outputs = batches[0][0]
    samples = {array.shape[0] for array in labels}
    assert device.bind(shapes(labels), shapes(outputs), samples.pop() if len(samples) == 1 else None)
    graph = StatisticsGraph(device, len(labels))
    if traced:
        graph.hybridize(static_alloc=True)
    totals = np.zeros(2 if device.returns_rows else device.width)
    for batch in batches:
        sizes = [mx.nd.array([(labels or outputs)[0].shape[0]]) for labels, outputs in batch]
        statistics = sum(graph(size, *labels, *outputs) for size, (labels, outputs) in zip(sizes, batch))
        assert statistics.shape == totals.shape
        assert statistics.dtype == (np.float32 if device.returns_rows else np.float64)
        totals += statistics.asnumpy()
    return totals


def check_agreement(metric: Any, batches: list[Batch], traced: bool, rtol: float = 1e-6) -> None:
    """Check that the device metric of `metric` computes what `metric` computes from all samples at once."""
    twin = copy_metric(metric)
    device = device_metric(twin)
    assert device is not None
    device.load(device_totals(device, batches, traced))
    devices = [device for batch in batches for device in batch]
    labels, outputs = ([mx.nd.concat(*pieces, dim=0) for pieces in zip(*each)] for each in zip(*devices))
    metric.update(labels, outputs)
    for result, expected in zip((twin.get(), twin.get_global()), (metric.get(), metric.get_global())):
        values = [value for value in expected if not isinstance(value, str)]  # behind a name, if there is one
        assert result[: -len(values)] == expected[: -len(values)]
        np.testing.assert_allclose(result[-len(values) :], values, rtol=rtol)
    assert not np.isnan(metric.get()[-1])
