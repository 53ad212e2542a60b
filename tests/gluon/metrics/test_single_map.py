"""A segmentation net with one map of scores predicts class 0 everywhere."""

from __future__ import annotations

import numpy as np
import pytest

from multifit.gluon.metrics import device_metric

# isort: split
import mxnet as mx
from gluoncv.utils.metrics import SegmentationMetric


@pytest.mark.parametrize("classes", [1, 2])
def test_one_map_of_scores(classes):
    label = np.random.randint(-1, classes, (4, 5, 6))
    output = np.random.randn(4, 1, 5, 6)
    stock, ours = SegmentationMetric(classes), SegmentationMetric(classes)
    labels, outputs = [mx.nd.array(label)], [mx.nd.array(output)]
    stock.update(labels, outputs)
    device = device_metric(ours)
    assert device.bind([label.shape], [output.shape])
    device.load(device.statistics(mx.nd, labels, outputs)[0].asnumpy())
    assert ours.get() == pytest.approx(stock.get())
