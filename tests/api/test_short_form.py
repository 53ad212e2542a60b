"""MultiEstimator(net, loss): what is inferred, and that each default is logged once."""

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mxnet import gluon
from mxnet.gluon import nn

from multifit import MultiEstimator, TrainerSpec
from tests.common.nets import two_heads
from tests.common.specs import CE, two_head_spec

L = gluon.loss
SCORES = np.random.RandomState(0).randn(4, 5, 3)


def data(outputs: int, classes: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    image = np.random.randn(12, 5).astype("float32")
    label = np.arange(12) % classes if classes else image[:, :outputs]
    return [(image[:8], label[:8].astype("float32")), (image[8:], label[8:].astype("float32"))]


def absolute(output: Any, label: Any) -> Any:
    return (output - label).abs()


@pytest.mark.parametrize(
    ("loss", "outputs", "classes", "metrics"),
    [
        (CE, 3, 3, ["accuracy"]),
        (L.SoftmaxCrossEntropyLoss(axis=1), 3, 3, ["accuracy"]),
        (L.SigmoidBinaryCrossEntropyLoss(), 1, 2, ["binary_accuracy"]),
        (L.L2Loss(), 2, 0, ["rmse"]),
        (L.HuberLoss(), 2, 0, ["rmse"]),
        (L.L1Loss(), 2, 0, ["mae"]),
        (absolute, 2, 0, []),
    ],
)
def test_the_metric_follows_the_loss(log: Any, loss: Any, outputs: int, classes: int, metrics: Any) -> None:
    history = MultiEstimator(nn.Dense(outputs), loss).fit(data(outputs, classes), epochs=2)
    assert list(history) == ["train_loss", "train_output", *[f"train_{metric}" for metric in metrics], "lr"]
    assert all(np.isfinite(values).all() for values in history.values())
    assert metrics or "default metric for absolute: none, only the loss" in log()


@pytest.mark.parametrize(
    "loss, scores, label, figure, value",
    [
        (
            L.SigmoidBinaryCrossEntropyLoss(from_sigmoid=True),  # probabilities are cut at one half
            np.array([[0.4], [0.2], [0.9], [0.3]]), np.array([0, 0, 1, 1]), "binary_accuracy", 0.75,
        ),
        (CE, SCORES, SCORES.argmax(axis=2), "accuracy", 1.0),  # (N, T, classes)
    ],
    ids=["probabilities", "classes last"],
)  # fmt: skip
def test_the_metric_reads_outputs_as_the_loss_does(loss, scores, label, figure, value):
    batch = scores.astype("float32"), label.astype("float32")
    estimator = MultiEstimator(nn.Lambda(lambda scores: scores), loss)
    assert estimator.evaluate([batch])[figure] == value


def test_each_default_is_logged_once(log: Callable[[], list[str]]) -> None:
    estimator = MultiEstimator(nn.Dense(3), CE)
    estimator.check(data(3, 3))
    estimator.fit(data(3, 3), epochs=1)
    estimator.fit(data(3, 3), epochs=1)
    assert [line for line in log() if line.startswith("default")] == [
        "default TaskSpec for SoftmaxCrossEntropyLoss: the net's input is called data, its output output, "
        "the label label",
        "default metric for SoftmaxCrossEntropyLoss: accuracy",
        "default trainer: adam, learning rate 0.001, over all parameters",
    ]
    assert "note: default metric for SoftmaxCrossEntropyLoss: accuracy" in str(estimator.plan)


def test_what_is_declared_is_not_logged_as_a_default(log: Callable[[], list[str]]) -> None:
    trainer = TrainerSpec(".*", "sgd", {"learning_rate": 0.1})
    MultiEstimator(two_heads(), two_head_spec(), trainers=trainer).learning_rates()
    assert not [line for line in log() if "default" in line]


def test_a_beginner_who_configured_no_logging_sees_the_log(capsys, monkeypatch):
    logger = logging.getLogger("multifit")
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logger, "propagate", False)  # pytest listens at the root
    monkeypatch.setattr(logger, "level", logging.NOTSET)
    MultiEstimator(nn.Dense(3), CE)
    MultiEstimator(nn.Dense(3), L.L2Loss())
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 4  # each line once, though there are two estimators
    assert shown[1] == "default metric for SoftmaxCrossEntropyLoss: accuracy"
