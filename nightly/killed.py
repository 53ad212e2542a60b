"""A small task with several sources of randomness, which ``test_kill.py`` trains, kills and resumes.

It has Dropout, BatchNorm, shuffling, Adam, and SGD with momentum. The data are scikit-learn's digits. With
``--set workers=2``, two worker processes add noise to the images.
"""

import os

import numpy as np
from mxnet import gluon, lr_scheduler, metric
from mxnet.gluon import nn
from mxnet.gluon.data.dataloader import default_batchify_fn

from multifit import LossSpec, MetricSpec, TaskSpec, TrainerSpec

epochs = 20
batch_size = 96
workers = 0


def counted(samples):
    """Return samples as a batch, and add a byte to a file, which shows how far a killed process had come."""
    with open(os.environ.get("MULTIFIT_PROGRESS", os.devnull), "ab", buffering=0) as progress:
        progress.write(b".")
    return default_batchify_fn(samples)


class KilledNet(nn.HybridBlock):
    """A dense body with two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.HybridSequential()
        self.body.add(
            nn.Dense(256), nn.BatchNorm(), nn.Activation("relu"), nn.Dropout(0.3), nn.Dense(64, "relu")
        )
        self.digit, self.ink = nn.Dense(10), nn.Dense(1)

    def hybrid_forward(self, F, image):
        """Return the heads' outputs, (N, 10) and (N, 1), for images (N, 64)."""
        features = self.body(image)
        return self.digit(features), self.ink(features)


def net():
    """Return the net."""
    killed_net = KilledNet()
    killed_net.hybridize()
    return killed_net


def spec():
    """Declare two losses and two metrics, one of which is summed on the host."""
    return TaskSpec(
        inputs=["image"],
        outputs=["digit", "ink"],
        labels=["digit", "ink"],
        losses={
            "digit": gluon.loss.SoftmaxCrossEntropyLoss(),
            "ink": LossSpec(gluon.loss.L2Loss(), weight=0.5),
        },
        metrics={
            "accuracy": MetricSpec(metric.Accuracy(), outputs="digit", labels="digit"),
            "correlation": MetricSpec(metric.PearsonCorrelation(), outputs="ink", labels="ink", mode="max"),
        },
    )


def trainers(net):
    """Let two optimizers share the net, one of them with a schedule."""
    schedule = lr_scheduler.FactorScheduler(50, 0.9, base_lr=2e-3)
    return {
        "body": TrainerSpec(net.body, "adam", {"learning_rate": 2e-3}, schedule),
        "heads": TrainerSpec(r"(digit|ink)\..*", "sgd", {"learning_rate": 0.02, "momentum": 0.9}),
    }


def data():
    """Return loaders of 1437 digits to train on and of the other 360."""
    from sklearn.datasets import load_digits

    pixels, digit = load_digits(return_X_y=True)
    image = pixels.astype("float32") / 16
    columns = image, digit.astype("int32"), image.mean(axis=1, keepdims=True)
    train, val = (gluon.data.ArrayDataset(*(c[part] for c in columns)) for part in np.s_[:1437, 1437:])
    if workers:
        train = gluon.data.DataLoader(
            train.transform_first(noisy), batch_size, shuffle=True, num_workers=workers
        )
    else:
        train = gluon.data.DataLoader(train, batch_size, shuffle=True, batchify_fn=counted)
    return train, gluon.data.DataLoader(val, batch_size)


def noisy(image):
    """Return an image with noise."""
    return image + np.random.normal(0, 0.1, image.shape).astype("float32")
