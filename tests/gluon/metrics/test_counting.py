"""All ways to count pixels agree with the metric; one thread counts few classes by products of masks."""

from typing import Any

import numpy as np
import pytest

from multifit.gluon.metrics import device_metric
from multifit.gluon.ops import sample_sums, whole_samples

from .device_totals import device_totals

# isort: split
import mxnet as mx
from gluoncv.utils.metrics import SegmentationMetric

RNG = np.random.RandomState(8)


@pytest.mark.parametrize(
    ("classes", "scores", "dtype", "hybrid"),
    [
        (2, 2, "int32", False), (6, 3, "float32", True), (7, 7, "float32", False), (21, 21, "int32", True),
        (1, 1, "int32", False), (2, 1, "float32", True),  # one map of scores predicts class 0 everywhere
    ],
)  # fmt: skip
def test_both_ways_equal_the_metric(
    with_threads: Any, classes: int, scores: int, dtype: str, hybrid: bool
) -> None:
    label = RNG.randint(-2, classes + 2, (4, 5, 6))
    if dtype == "float32":  # which is truncated
        label = label + RNG.uniform(-0.9, 0.9, label.shape)
    label = mx.nd.array(label, dtype=dtype)
    output = mx.nd.array(RNG.randint(0, 3, (4, scores, 5, 6)))  # with many that are equal
    stock = SegmentationMetric(classes)
    stock.update([label], [output])
    for count in (1, 2):
        with_threads(count)
        device = device_metric(SegmentationMetric(classes))
        device.load(device_totals(device, [[([label], [output])]], hybrid))
        assert device.metric.get() == pytest.approx(stock.get(), abs=1e-12)


def test_a_sample_that_is_summed_at_once_has_the_same_sum() -> None:
    values = mx.nd.array(RNG.randn(5, 3, 4))
    with whole_samples():
        whole = sample_sums(mx.nd, values)
    np.testing.assert_allclose(whole.asnumpy(), sample_sums(mx.nd, values).asnumpy(), rtol=1e-5)
