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
from .gluon_estimator import gluon_epoch
from .subject import STATIC, Epoch, Subject, task

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
    devices: int = 1
    rounds: int = 15

    def spec(self, net: Any) -> TaskSpec:
        """Return the spec, with one output and one label."""
        return TaskSpec(
            outputs=["output"],
            labels=["label"],
            losses={"cross_entropy": LossSpec(self.loss(), "output", "label")},
            metrics={"metric": MetricSpec(self.metric(), "output", "label")},
        )

    def hand_written(self, hybridized_loss: bool = False) -> Epoch:
        """Return an epoch of the usual loop: forward, backward, step, both figures updated each batch."""
        net, loss_fn = self.net(), self.loss()
        if hybridized_loss:
            loss_fn.hybridize(**STATIC)
        trainer = gluon.Trainer(net.collect_params(), *self.optimizer)
        metric, mean_loss = self.metric(), mx.metric.Loss()

        def epoch(batches: Any) -> list[float]:
            metric.reset()
            mean_loss.reset()
            for data, label in batches:
                images = gluon.utils.split_and_load(data, self.contexts)
                labels = gluon.utils.split_and_load(label, self.contexts)
                with autograd.record():
                    outputs = [net(image) for image in images]
                    losses = [loss_fn(*pair) for pair in zip(outputs, labels)]
                autograd.backward(losses)
                trainer.step(data.shape[0])
                metric.update(labels, outputs)
                mean_loss.update(0, losses)
            return [mean_loss.get()[1], *np.ravel(metric.get()[1]).tolist()]

        return epoch

    def others(self) -> dict[str, Epoch]:
        """Return the usual loop, one with a hybridized loss, and Gluon's Estimator."""
        return {
            "hand-written": self.hand_written(),
            "hand-written, loss hybridized": self.hand_written(hybridized_loss=True),
            "Gluon": gluon_epoch(self),
        }


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
    Single("tiny FCN, mean IoU, 2 devices", fcn, shape_batches, *PIXELS, devices=2),
    Single("U-Net of tasks/segmentation.py", lambda: task("segmentation").TinyFCN(4), shape_batches, *PIXELS),
)
