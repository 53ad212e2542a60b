"""Nets with one output, one loss and one metric."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mxnet as mx
import numpy as np
from gluoncv.utils.metrics import SegmentationMetric
from mxnet import autograd, gluon
from mxnet.gluon import nn

from multifit import LossSpec, MetricSpec, TaskSpec

from .data import digit_batches, shape_batches
from .subject import Epoch, Subject, task

__all__ = ["PIXELS", "SINGLES", "Single", "fcn"]


@dataclass(frozen=True)
class Single(Subject):
    """A net with everything that a loop needs."""

    name: str
    make: Callable[[], Any]
    batches: Callable[[], list[tuple[Any, Any]]]
    loss: Callable[[], Any] = gluon.loss.SoftmaxCrossEntropyLoss
    metric: Callable[[], Any] = mx.metric.Accuracy
    predicts: str = "classes"
    rounds: int = 15

    def spec(self, net: Any) -> TaskSpec:
        """Return the spec, with one output and one label."""
        return TaskSpec(
            outputs=["output"],
            labels=["label"],
            losses={"cross_entropy": LossSpec(self.loss(), "output", "label")},
            metrics={"metric": MetricSpec(self.metric(), "output", "label")},
        )

    def hand_written(self) -> Epoch:
        """Return an epoch of the usual loop: forward, backward, step, both figures updated each batch."""
        net, loss_fn = self.net(), self.loss()
        trainer = gluon.Trainer(net.collect_params(), *self.optimizer)
        metric, mean_loss = self.metric(), mx.metric.Loss()

        def epoch(batches: Any) -> list[float]:
            metric.reset()
            mean_loss.reset()
            for data, label in batches:
                with autograd.record():
                    output = net(data)
                    loss = loss_fn(output, label)
                loss.backward()
                trainer.step(data.shape[0])
                metric.update([label], [output])
                mean_loss.update(0, [loss])
            return [mean_loss.get()[1], *np.ravel(metric.get()[1]).tolist()]

        return epoch


def fcn() -> Any:
    """Return six convolutions down to stride 8, and one transposed convolution back."""
    net = nn.HybridSequential()
    for channels, stride in ((16, 1), (16, 2), (32, 1), (32, 2), (64, 1), (64, 2)):
        net.add(nn.Conv2D(channels, 3, strides=stride, padding=1, activation="relu"))
    net.add(nn.Conv2D(4, 1), nn.Conv2DTranspose(4, 16, 8, 4))
    return net


def _from_tasks(model: str) -> Callable[[], Any]:
    return lambda: task("classification").MODELS[model].make()


PIXELS = (lambda: gluon.loss.SoftmaxCrossEntropyLoss(axis=1), lambda: SegmentationMetric(4), "pixels")
SINGLES = (
    Single("MLP", _from_tasks("mlp"), digit_batches, rounds=100),
    Single("LeNet", _from_tasks("lenet"), lambda: digit_batches(28)),
    Single("ResNet18 thumbnail", _from_tasks("resnet18"), lambda: digit_batches(32, 5)),
    Single("tiny FCN, mean IoU", fcn, shape_batches, *PIXELS),
)
