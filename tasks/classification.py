"""Which digit is it? The classical nets of Gluon's model zoo, at sizes that a CPU trains in a minute.

``--set model=lenet`` (or mlp, alexnet, vgg, resnet18) chooses the net, and ``--set dataset=mnist root=DIR``
uses MNIST instead of scikit-learn's 1797 digits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np

from multifit import MetricSpec, TaskSpec, TrainerSpec

from mxnet import gluon, init, metric  # isort: skip
from mxnet.gluon import nn  # isort: skip
from mxnet.gluon.model_zoo import vision  # isort: skip

epochs = 12
batch_size = 64
model: Literal["mlp", "lenet", "alexnet", "vgg", "resnet18"] = "lenet"
dataset: Literal["digits", "mnist"] = "digits"
root = ""  # for dataset=mnist: the folder with its four files


def mlp():
    """Return a net of three dense layers."""
    layers = nn.HybridSequential()
    layers.add(nn.Dense(128, activation="relu"), nn.Dense(64, activation="relu"), nn.Dense(10))
    return layers


def lenet():
    """Return LeNet: two convolutions, two dense layers."""
    layers = nn.HybridSequential()
    layers.add(
        nn.Conv2D(20, 5, activation="tanh"),
        nn.MaxPool2D(),
        nn.Conv2D(50, 5, activation="tanh"),
        nn.MaxPool2D(),
        nn.Dense(500, activation="tanh"),
        nn.Dense(10),
    )
    return layers


class Choice(NamedTuple):
    """A net, the side of its images in pixels, and its optimizer."""

    make: Callable[[], Any]
    side: int
    optimizer: str
    options: dict[str, float]


MODELS = {
    "mlp": Choice(mlp, 8, "adam", {"learning_rate": 2e-3}),
    "lenet": Choice(lenet, 28, "adam", {"learning_rate": 1e-3}),
    "alexnet": Choice(lambda: vision.alexnet(classes=10), 64, "adam", {"learning_rate": 2e-4}),
    "vgg": Choice(
        lambda: vision.VGG([1, 1, 1], [16, 32, 64], classes=10, batch_norm=True),
        32,
        "sgd",
        {"learning_rate": 0.01, "momentum": 0.9},
    ),
    "resnet18": Choice(
        lambda: vision.ResNetV1(
            vision.BasicBlockV1, [2, 2, 2, 2], [16, 16, 32, 64, 128], classes=10, thumbnail=True
        ),
        32,
        "sgd",
        {"learning_rate": 0.05, "momentum": 0.9, "wd": 1e-4},
    ),
}


def net():
    """Return the net; the estimator initialises it."""
    chosen = MODELS[model].make()
    chosen.hybridize()
    return chosen


def initializer():
    """Return the initializer of Glorot and Bengio (2010)."""
    return init.Xavier()


def spec():
    """Declare the loss and the metrics."""
    return TaskSpec(
        inputs=["image"],
        outputs=["digit"],
        labels=["digit"],
        losses={"digit": gluon.loss.SoftmaxCrossEntropyLoss()},
        metrics={
            "accuracy": MetricSpec(metric.Accuracy(), outputs="digit", labels="digit"),
            "top3": MetricSpec(metric.TopKAccuracy(3), outputs="digit", labels="digit"),
        },
    )


def trainers():
    """Return the optimizer that suits the net."""
    return TrainerSpec(".*", MODELS[model].optimizer, MODELS[model].options)


def data():
    """Return loaders of training and held-out digits, at the size of the net's images."""
    from data.mnist import digits, mnist, resized

    parts = mnist(root) if dataset == "mnist" else digits()
    train, val = (gluon.data.ArrayDataset(resized(i, MODELS[model].side), digit) for i, digit in parts)
    return gluon.data.DataLoader(train, batch_size, shuffle=True), gluon.data.DataLoader(val, batch_size)


def inputs(arguments):
    """Read image files with a digit each."""
    from data.mnist import read_digit

    return np.stack([read_digit(path, MODELS[model].side) for path in arguments])


def show(outputs):
    """Return the digit that each image shows, with the probability."""
    odds = np.exp(outputs["digit"] - outputs["digit"].max(axis=1, keepdims=True))
    probabilities = odds / odds.sum(axis=1, keepdims=True)
    return [f"{row.argmax()} ({row.max():.2f})" for row in probabilities]
