"""Which digit is it, from few labels, and is it odd, from many labels: a loader for each task.

The class is known of 50 images only. The net learns it better together with the parity of 1387 other images.
``Proportional(temperature=3)`` takes more of the small data set than its share. ``--set joint=True`` instead
trains on a batch of each loader in every update, which methods of balancing need; ``multifit train --only
digit`` trains on the small data set alone. The data are scikit-learn's 1797 real digits, 8 by 8 pixels.
"""

from __future__ import annotations

import numpy as np

from multifit import LabelSpec, MetricSpec, TaskSpec, TrainerSpec
from multifit.sampling import Proportional, Together

# On Python 3.12, multifit must be imported before mxnet.
# isort: split
from mxnet import gluon, init, metric
from mxnet.gluon import nn

epochs = 15
batch_size = 32
rate = 2e-3
few = 50  # images whose digit is known
temperature = 3.0  # of the mix of loaders; 1 takes each of their batches once
joint = False  # whether every update is made by a batch of each loader

TASKS = ("digit", "parity")


class FewDigitsNet(nn.HybridBlock):
    """Two convolutions and a dense layer, which two heads share."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.HybridSequential()
        self.body.add(
            nn.Conv2D(16, 3, padding=1, activation="relu"),
            nn.MaxPool2D(),
            nn.Conv2D(32, 3, padding=1, activation="relu"),
            nn.Dense(64, activation="relu"),
        )
        self.digit, self.parity = nn.Dense(10), nn.Dense(2)

    def hybrid_forward(self, F, image):
        """Return the heads' outputs, (N, 10) and (N, 2), for images (N, 1, 8, 8)."""
        features = self.body(image)
        return self.digit(features), self.parity(features)


def net():
    """Return the net; the estimator initialises it."""
    few_digits_net = FewDigitsNet()
    few_digits_net.hybridize()
    return few_digits_net


def initializer():
    """Return the initializer of the weights."""
    return init.Xavier()


def spec():
    """Declare a loss and a metric for each task."""
    return TaskSpec(
        inputs=["image"],
        outputs=list(TASKS),
        labels=[LabelSpec(task, missing=-1) if joint else task for task in TASKS],
        losses={task: gluon.loss.SoftmaxCrossEntropyLoss() for task in TASKS},
        metrics={f"{task}_accuracy": MetricSpec(metric.Accuracy(), task, task) for task in TASKS},
    )


def trainers():
    """Return one trainer for all parameters."""
    return TrainerSpec(".*", "adam", {"learning_rate": rate})


def sampling():
    """Return how the loaders are mixed."""
    return Together("longest") if joint else Proportional(temperature=temperature)


def data():
    """Return training loaders of few digits and of many parities, and one of 360 other images with both."""
    from sklearn.datasets import load_digits

    pixels, digit = load_digits(return_X_y=True)
    order = np.random.RandomState(0).permutation(len(digit))  # the same split for every seed
    image, digit = pixels[order].reshape(-1, 1, 8, 8).astype("float32") / 16, digit[order].astype("int32")
    train = {
        "digit": _loader(image[:few], digit[:few], shuffle=True),
        "parity": _loader(image[few:1437], digit[few:1437] % 2, shuffle=True),
    }
    return train, _loader(image[1437:], digit[1437:], digit[1437:] % 2)


def _loader(*columns, shuffle=False):
    return gluon.data.DataLoader(gluon.data.ArrayDataset(*columns), batch_size, shuffle=shuffle)
