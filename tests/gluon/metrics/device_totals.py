"""Run device metrics as a stage does, and compare them with the metrics themselves."""

from typing import Any

import numpy as np

from multifit.gluon.metrics import copy_metric, device_metric

import mxnet as mx  # isort: skip

Batch = list  # per device: (labels, outputs), each a list of NDArrays


class StatisticsGraph(mx.gluon.HybridBlock):
    """A device metric as one graph, called with the labels and then the outputs."""

    def __init__(self, device: Any, labels: int) -> None:
        super().__init__()
        self.device, self.labels = device, labels

    def hybrid_forward(self, F: Any, *slots: Any) -> Any:
        pieces = self.device.statistics(F, list(slots[: self.labels]), list(slots[self.labels :]))
        return F.concat(*pieces, dim=0) if len(pieces) > 1 else pieces[0]


def device_totals(device: Any, batches: list[Batch], traced: bool) -> np.ndarray:
    """Sum a device metric's statistics over devices and batches."""
    labels, outputs = batches[0][0]
    assert device.bind(*[[array.shape for array in arrays] for arrays in (labels, outputs)])
    graph = StatisticsGraph(device, len(labels))
    if traced:
        graph.hybridize(static_alloc=True)
    pieces = [graph(*labels, *outputs) for batch in batches for labels, outputs in batch]
    assert {(piece.shape, piece.dtype) for piece in pieces} == {((device.width,), np.float32)}
    return np.sum([piece.asnumpy() for piece in pieces], axis=0, dtype="float64")


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
