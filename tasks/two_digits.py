"""Two handwritten digits on top of each other: which is the left one, which the right one, and their sum.

The body is so small that the tasks compete for it, and the loss of the sum has a larger scale than the other
two. ``--set method=IMTLL`` lets another method of multifit.balance weigh the tasks, and ``method=`` minimises
the sum of the losses. ``multifit train --only left`` trains one task alone, to compare.
The data are scikit-learn's 1797 real digits, 8 by 8 pixels.
"""

import numpy as np
from mxnet import gluon, init, metric
from mxnet.gluon import nn
from sklearn.datasets import load_digits

from multifit import LossSpec, MetricSpec, TaskSpec, TrainerSpec
from multifit import balance as balances

TASKS = ("left", "right", "sum")
SHIFT = 4  # columns between the two digits, which overlap by as many

epochs = 12
batch_size = 64
rate = 3e-3
train_count = 4000
val_count = 1000
method = "UPGrad"


class TwoDigitsNet(nn.HybridBlock):
    """Two convolutions and a narrow dense layer, which the tasks' heads share."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.heads = nn.HybridSequential(), nn.HybridSequential()
        self.body.add(
            nn.Conv2D(16, 3, padding=1, activation="relu"),
            nn.MaxPool2D(),
            nn.Conv2D(24, 3, padding=1, activation="relu"),
            nn.Dense(32, activation="relu"),
        )
        self.heads.add(*(nn.Dense(1 if task == "sum" else 10) for task in TASKS))

    def hybrid_forward(self, F, image):
        """Return each task's output, (N, 10) or (N, 1), for images (N, 1, 8, 12)."""
        features = self.body(image)
        return [head(features) for head in self.heads]


def net():
    """Return the net; the estimator initialises it."""
    two_digits_net = TwoDigitsNet()
    two_digits_net.hybridize()
    return two_digits_net


def initializer():
    """Return the initializer of the weights."""
    return init.Xavier()


def spec():
    """Declare an output, a loss and a metric for each task."""
    cross_entropy, error = gluon.loss.SoftmaxCrossEntropyLoss, gluon.loss.L2Loss
    return TaskSpec(
        inputs=["image"],
        outputs=[f"{task}_out" for task in TASKS],
        labels=list(TASKS),
        losses={
            task: LossSpec(error() if task == "sum" else cross_entropy(), f"{task}_out", task)
            for task in TASKS
        },
        metrics={
            f"{task}_error" if task == "sum" else f"{task}_accuracy": MetricSpec(
                metric.MAE() if task == "sum" else metric.Accuracy(), f"{task}_out", task
            )
            for task in TASKS
        },
    )


def trainers():
    """Return one trainer for all parameters."""
    return TrainerSpec(".*", "adam", {"learning_rate": rate})


def balance():
    """Return the method that weighs the tasks; None for the sum of their losses."""
    return getattr(balances, method)() if method else None


def data():
    """Return loaders of pairs of digits; training and validation show different digits."""
    pixels, classes = load_digits(return_X_y=True)
    halves = [(slice(0, 1437), train_count), (slice(1437, None), val_count)]
    train, val = (_pairs(pixels[part], classes[part], count) for part, count in halves)
    return gluon.data.DataLoader(train, batch_size, shuffle=True), gluon.data.DataLoader(val, batch_size)


def _pairs(pixels, classes, count):
    random = np.random.RandomState(len(classes))
    left, right = random.randint(len(classes), size=(2, count))
    image = np.zeros((count, 1, 8, 8 + SHIFT), "float32")
    image[:, 0, :, :8] = pixels[left].reshape(-1, 8, 8) / 16
    image[:, 0, :, SHIFT:] = np.maximum(image[:, 0, :, SHIFT:], pixels[right].reshape(-1, 8, 8) / 16)
    total = (classes[left] + classes[right]).astype("float32").reshape(-1, 1)
    return gluon.data.ArrayDataset(
        image, classes[left].astype("int32"), classes[right].astype("int32"), total
    )
