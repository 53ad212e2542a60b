"""A siamese net: one net, called on two inputs, and one label for both (Hadsell et al., 2006)."""

import numpy as np
from sklearn.datasets import load_digits

from multifit import LossSpec, MetricSpec, MultiEstimator, TaskSpec, TrainerSpec
from tests.common.grids import two_settings
from tests.common.nets import hybridized, sequential

import mxnet as mx  # isort: skip
from mxnet import gluon, nd  # isort: skip
from mxnet.gluon import nn  # isort: skip


def pairs(count, seed):
    """Return batches of pairs of zeros and ones: left, right, and 1 where they are the same, else -1."""
    random = np.random.RandomState(seed)
    pixels, digits = load_digits(n_class=2, return_X_y=True)
    left, right = random.randint(0, len(digits), (2, count))
    same = np.where(digits[left] == digits[right], 1, -1).astype("float32")
    columns = [nd.array(column) for column in (pixels[left] / 16, pixels[right] / 16, same)]
    return [tuple(column[start : start + 32] for column in columns) for start in range(0, count, 32)]


def both(net, slots):
    return net(slots["left"]), net(slots["right"])


def likeness(left, right, same):
    """Prepare embeddings for Accuracy: whether they are alike, and whether they should be."""
    alike = (left * right).sum(axis=1) / (left.norm(axis=1) * right.norm(axis=1))
    return alike > 0.5, same > 0


def spec():
    return TaskSpec(
        inputs=["left", "right"],
        outputs=["left", "right"],
        labels=["same"],
        forward=both,
        losses={
            "likeness": LossSpec(gluon.loss.CosineEmbeddingLoss(), outputs=["left", "right"], labels="same")
        },
        metrics={
            "same": MetricSpec(
                mx.metric.CustomMetric(lambda same, alike: np.mean(same == alike), name="same"),
                outputs=["left", "right"],
                labels="same",
                transform=lambda left, right, same: likeness(left, right, same)[::-1],
                mode="max",
            )
        },
    )


@two_settings
def test_it_tells_whether_two_digits_are_the_same(devices, hybrid):
    net = hybridized(sequential(nn.Dense(32, activation="relu"), nn.Dense(8)), hybrid)
    trainer = TrainerSpec(".*", "adam", {"learning_rate": 5e-3})
    estimator = MultiEstimator(net, spec(), trainer, context=devices)
    history = estimator.fit(pairs(320, 0), pairs(96, 1), epochs=5)
    assert history["val_same"][-1] > 0.95
    assert history["val_likeness"][-1] < history["val_likeness"][0]
    left, right, _ = pairs(32, 0)[0]
    outputs = estimator.predict({"left": left, "right": right})
    turned = estimator.predict({"left": right, "right": left})
    np.testing.assert_array_equal(outputs["left"], turned["right"])
