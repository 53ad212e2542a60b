"""Nets with one body and one, two or many heads."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon import nn

from multifit import LossSpec, MetricSpec, TaskSpec
from multifit.metrics import BinaryAccuracy

from .data import digit_batches_for
from .fused import fused
from .subject import Epoch, Subject

__all__ = ["HEADS", "Heads", "HeadsNet"]

SGD = ("sgd", {"learning_rate": 0.01, "momentum": 0.9})
ADAM = ("adam", {"learning_rate": 1e-3})


class HeadsNet(nn.HybridBlock):
    """Two dense layers, and a dense head of each width; a single head returns an array, not a list."""

    def __init__(self, widths: list[int]) -> None:
        super().__init__()
        self.body, self.heads = nn.HybridSequential(), nn.HybridSequential()
        self.body.add(nn.Dense(128, activation="relu"), nn.Dense(64, activation="relu"))
        self.heads.add(*map(nn.Dense, widths))

    def hybrid_forward(self, F: Any, image: Any) -> Any:
        """Return (N, width) of each head for images (N, 1, 8, 8)."""
        features = self.body(image)
        outputs = [head(features) for head in self.heads]
        return outputs if len(outputs) > 1 else outputs[0]


@dataclass(frozen=True)
class Heads(Subject):
    """Two heads predict the digit and whether it is odd; any other number predict ten classes each."""

    count: int
    optimizer: tuple[str, Mapping[str, float]] = SGD
    rounds: int = 100

    @property
    def name(self) -> str:
        """The number of heads, and the optimizer if it is not SGD."""
        plural = "s" if self.count > 1 else ""
        return f"{self.count} head{plural}" + (f", {self.optimizer[0]}" if self.optimizer is not SGD else "")

    @property
    def binary(self) -> list[bool]:
        """Whether each head is binary, with one logit."""
        return [self.count == 2 and i == 1 for i in range(self.count)]

    def make(self) -> Any:
        """Return the net."""
        return HeadsNet([1 if binary else 10 for binary in self.binary])

    def batches(self) -> list[tuple[Any, ...]]:
        """Return images and each head's labels."""
        return digit_batches_for(self.count)

    def spec(self, net: Any) -> TaskSpec:
        """Return the spec: a loss and an accuracy for each head."""
        names = [f"head{i}" for i in range(self.count)]
        metrics = [BinaryAccuracy() if binary else mx.metric.Accuracy() for binary in self.binary]
        return TaskSpec(
            inputs=["image"],
            outputs=names,
            labels=names,
            losses={n: LossSpec(loss) for n, loss in zip(names, self.losses())},
            metrics={f"{n}_accuracy": MetricSpec(metric, n, n) for n, metric in zip(names, metrics)},
        )

    def losses(self) -> list[Any]:
        """Return each head's loss."""
        binary, classes = gluon.loss.SigmoidBinaryCrossEntropyLoss, gluon.loss.SoftmaxCrossEntropyLoss
        return [(binary if each else classes)() for each in self.binary]

    def hand_written(self) -> Epoch:
        """Return an epoch of the usual loop: one backward, one step, two figures of each head updated."""
        net, losses = self.net(), self.losses()
        means, accuracies = ([kind() for _ in losses] for kind in (mx.metric.Loss, mx.metric.Accuracy))
        trainer = gluon.Trainer(net.collect_params(), *self.optimizer)

        def epoch(batches: Any) -> list[float]:
            for figure in means + accuracies:
                figure.reset()
            for image, *labels in batches:
                with autograd.record():
                    outputs = net(image)
                    outputs = outputs if isinstance(outputs, list) else [outputs]
                    values = [loss(*pair) for loss, *pair in zip(losses, outputs, labels)]
                autograd.backward(values)
                trainer.step(image.shape[0])
                for mean, accuracy, binary, label, output, value in zip(
                    means, accuracies, self.binary, labels, outputs, values
                ):
                    mean.update(0, value)
                    accuracy.update(label, output > 0 if binary else output)
            return [figure.get()[1] for figure in means + accuracies]

        return epoch

    def others(self) -> dict[str, Epoch]:
        """Return the usual loop, and the fastest that can be written by hand."""
        return {**super().others(), "fused by hand": fused(self)}


HEADS = (Heads(1), Heads(2), Heads(2, ADAM), Heads(4), Heads(16, rounds=40), Heads(64, rounds=15))
