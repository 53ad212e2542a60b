"""The nets, batches and metrics that step times are measured on; all three loops get the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

import mxnet as mx
import numpy as np
from gluoncv.utils.metrics import SegmentationMetric
from mxnet import gluon
from mxnet.gluon import nn
from mxnet.gluon.model_zoo import vision

__all__ = ["CASES", "Case"]


@dataclass(frozen=True)
class Case:
    """One net with everything that a loop needs; each contender builds its own copy from the same seed."""

    name: str
    net: Callable[[], Any]
    loss: Callable[[], Any]
    metric: Callable[[], Any]
    shape: tuple[int, ...]
    label: tuple[int, ...]
    classes: int
    batches: int
    devices: int = 1

    @property
    def contexts(self) -> list[Any]:
        """The devices: so many CPU contexts."""
        return [mx.cpu(i) for i in range(self.devices)]

    def data(self) -> list[tuple[Any, Any]]:
        """Return batches that are made beforehand: loading is not what is measured."""
        random = np.random.RandomState(0)
        return [
            (
                mx.nd.array(random.normal(size=self.shape)),
                mx.nd.array(random.randint(0, self.classes, self.label)),
            )
            for _ in range(self.batches)
        ]

    def built(self) -> Any:
        """Return the net, initialised alike for every contender and hybridized."""
        mx.random.seed(0)
        net = self.net()
        net.initialize(mx.init.Xavier(), ctx=self.contexts)
        net.hybridize()
        return net


def mlp() -> Any:
    """128-64-10."""
    return _sequence(nn.Dense(128, activation="relu"), nn.Dense(64, activation="relu"), nn.Dense(10))


def lenet() -> Any:
    """20-50-500, for 28x28."""
    return _sequence(
        nn.Conv2D(20, 5, activation="relu"), nn.MaxPool2D(2, 2), nn.Conv2D(50, 5, activation="relu"),
        nn.MaxPool2D(2, 2), nn.Flatten(), nn.Dense(500, activation="relu"), nn.Dense(10),
    )  # fmt: skip


def resnet18() -> Any:
    """A thumbnail ResNet18, for 32x32."""
    widths = [16, 16, 32, 64, 128]
    return vision.ResNetV1(vision.BasicBlockV1, [2, 2, 2, 2], widths, classes=10, thumbnail=True)


def fcn() -> Any:
    """Six convolutions to stride 8 and back, for 64x64."""
    net = nn.HybridSequential()
    for channels, stride in ((16, 1), (16, 2), (32, 1), (32, 2), (64, 1), (64, 2)):
        net.add(nn.Conv2D(channels, 3, strides=stride, padding=1, activation="relu"))
    net.add(nn.Conv2D(4, 1), nn.Conv2DTranspose(4, 16, 8, 4))
    return net


def _sequence(*layers: Any) -> Any:
    net = nn.HybridSequential()
    net.add(*layers)
    return net


SOFTMAX = gluon.loss.SoftmaxCrossEntropyLoss
FCN = (fcn, lambda: SOFTMAX(axis=1), lambda: SegmentationMetric(4), (16, 3, 64, 64), (16, 64, 64), 4, 40)
CASES = (
    Case("MLP", mlp, SOFTMAX, mx.metric.Accuracy, (64, 64), (64,), 10, 200),
    Case("LeNet", lenet, SOFTMAX, mx.metric.Accuracy, (64, 1, 28, 28), (64,), 10, 20),
    Case("ResNet18 thumbnail", resnet18, SOFTMAX, mx.metric.Accuracy, (64, 1, 32, 32), (64,), 10, 5),
    Case("tiny FCN, mean IoU", *FCN),
    Case("tiny FCN, mean IoU, 2 devices", *FCN, devices=2),
)
