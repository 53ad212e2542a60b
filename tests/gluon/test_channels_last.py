"""Images with the channels last train a convolution over their rows, which a warning or an error says."""

import re
from typing import Any

import numpy as np
import pytest

from multifit import MultiEstimator

import mxnet as mx  # isort: skip
from mxnet import gluon

WAY_OUT = "images are (N, C, H, W): give them ToTensor() of gluon.data.vision.transforms, or transpose("


def check(*blocks: Any, channels: int = 3) -> list[str]:
    net = gluon.nn.HybridSequential()
    net.add(*blocks, gluon.nn.Dense(2))
    batch = np.ones((4, 8, 8, channels), "float32"), np.zeros(4, "float32")
    plan = MultiEstimator(net, gluon.loss.SoftmaxCrossEntropyLoss()).check([batch])
    return [notice for notice in plan.notices if "channels last" in notice]


def test_a_convolution_over_the_rows_is_warned_of() -> None:
    (warning,) = check(gluon.nn.Conv2D(4, 3))
    assert warning.startswith(
        'the input "data" (4, 8, 8, 3) float32 looks like images with the channels last'
    )
    assert "a convolution takes the 8 rows for channels" in warning and WAY_OUT in warning


def test_what_is_as_meant_is_not() -> None:
    moved = gluon.nn.HybridLambda(lambda F, x: F.transpose(x, (0, 3, 1, 2)))
    assert check(moved, gluon.nn.Conv2D(8, 3), gluon.nn.Conv2D(4, 3)) == check(gluon.nn.Dense(4)) == []


@pytest.mark.parametrize(("channels", "options"), [(1, {}), (3, {"in_channels": 3})])
def test_an_error_of_a_convolution_says_so(channels: int, options: dict) -> None:
    with pytest.raises(mx.MXNetError if options else ValueError, match=re.escape(WAY_OUT)):
        check(gluon.nn.Conv2D(4, 3, **options), channels=channels)
