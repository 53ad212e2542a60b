"""The two ways to count pixels agree; on one thread, few classes are counted by products of masks."""

from __future__ import annotations

import numpy as np
import pytest

from multifit.gluon.metrics import device_metric

from .device_totals import device_totals

# isort: split
import mxnet as mx
from gluoncv.utils.metrics import SegmentationMetric

RNG = np.random.RandomState(8)


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize(("classes", "scores"), [(2, 2), (4, 4), (6, 6), (6, 3), (7, 7), (21, 21)])
@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_both_ways_equal_the_metric(with_threads, classes, scores, dtype, hybrid):
    label = mx.nd.array(RNG.randint(-2, classes + 2, (4, 5, 6)), dtype=dtype)
    output = mx.nd.array(RNG.randint(0, 3, (4, scores, 5, 6)))  # with many that are equal
    stock = SegmentationMetric(classes)
    stock.update([label], [output])
    for count in (1, 2):
        with_threads(count)
        device = device_metric(SegmentationMetric(classes))
        device.load(device_totals(device, [[([label], [output])]], hybrid))
        assert device.metric.get() == pytest.approx(stock.get(), abs=1e-12)


def test_both_ways_truncate_labels(with_threads):
    label, output = mx.nd.array([[[-0.7, 0.9, 1.4]]]), mx.nd.array(RNG.randn(1, 2, 1, 3))
    found = []
    for count in (1, 2):
        with_threads(count)
        device = device_metric(SegmentationMetric(2))
        assert device.bind([label.shape], [output.shape])
        found.append(device.statistics(mx.nd, [label], [output])[0].asnumpy())
    assert found[0].sum() == 3
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize(
    ("side", "classes", "count", "way"),
    [
        (8, 4, 1, "_by_products"),
        (8, 4, 2, "_by_scattering"),
        (8, 7, 1, "_by_scattering"),
        (1449, 4, 1, "_by_scattering"),  # a few such samples, and float32 no longer counts their pixels
    ],
)
def test_which_way_is_chosen(with_threads, side, classes, count, way):
    with_threads(count)
    pair = device_metric(SegmentationMetric(classes)).graph_for((1, side, side), (1, classes, side, side))
    assert pair.func.__name__ == way
