"""All ways to count pixels agree with the metric; one thread counts few classes by products of masks."""

from typing import Any

import numpy as np
import pytest

from multifit.gluon.execution.fused_losses import fused_loss, negative_log_likelihood
from multifit.gluon.losses import SegmentationCELoss
from multifit.gluon.metrics import device_metric
from multifit.gluon.ops import first_largest, whole_maps

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


def test_reductions_over_all_classes_at_once_are_equal() -> None:
    label = mx.nd.array(RNG.randint(-2, 6, (2, 3, 4)))
    output = mx.nd.array(RNG.randint(0, 3, (2, 4, 3, 4)))  # with ties
    metric = device_metric(SegmentationMetric(4))
    assert metric.bind([label.shape], [output.shape])
    logits = mx.nd.array(RNG.randn(2, 4, 3, 4))
    classes = label.clip(0, 3)
    losses = [mx.gluon.loss.SoftmaxCrossEntropyLoss(axis=1), SegmentationCELoss(ignore_label=2)]

    def computed() -> list[Any]:
        (counts,) = metric.statistics(mx.nd, [label], [output])
        arrays = [counts.reshape((6, 4))[1:], first_largest(mx.nd, output, 4)]
        arrays += [fused_loss(loss, [logits, classes])(logits, classes) for loss in losses]
        return [array.asnumpy() for array in (*arrays, negative_log_likelihood(mx.nd, logits, classes, 4))]

    expected = computed()
    with whole_maps():
        for ours, theirs in zip(computed(), expected):
            np.testing.assert_allclose(ours, theirs, atol=1e-6)
