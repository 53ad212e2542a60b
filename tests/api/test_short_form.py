"""MultiEstimator(net, loss): what is inferred, and that each default is told once."""

from __future__ import annotations

import logging
from typing import Any, Callable

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon
from mxnet.gluon import nn

import multifit

L = gluon.loss


def data(outputs: int, classes: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    image = np.random.randn(12, 5).astype("float32")
    label = np.arange(12) % classes if classes else image[:, :outputs]
    return [(image[:8], label[:8].astype("float32")), (image[8:], label[8:].astype("float32"))]


@pytest.mark.parametrize(
    ("loss", "outputs", "classes", "metric"),
    [
        (L.SoftmaxCrossEntropyLoss(), 3, 3, "accuracy"),
        (L.SoftmaxCrossEntropyLoss(axis=1), 3, 3, "accuracy"),
        (L.SigmoidBinaryCrossEntropyLoss(), 1, 2, "binary_accuracy"),
        (L.L2Loss(), 2, 0, "rmse"),
        (L.HuberLoss(), 2, 0, "rmse"),
        (L.L1Loss(), 2, 0, "mae"),
    ],
)
def test_the_metric_follows_the_loss(loss: Any, outputs: int, classes: int, metric: str) -> None:
    history = multifit.MultiEstimator(nn.Dense(outputs), loss).fit(data(outputs, classes), epochs=2)
    assert list(history) == ["train_loss", "train_output", f"train_{metric}", "lr"]
    assert np.isfinite(history[f"train_{metric}"]).all()


def test_any_other_loss_is_measured_by_itself_alone(log: Callable[[], list[str]]) -> None:
    def absolute(output: Any, label: Any) -> Any:
        return (output - label).abs()

    history = multifit.MultiEstimator(nn.Dense(2), absolute).fit(data(2), epochs=1)
    assert list(history) == ["train_loss", "train_output", "lr"]
    assert "default metric for absolute: none, the loss alone" in log()


def test_probabilities_are_cut_at_one_half() -> None:
    class Probability(gluon.Block):
        def forward(self, image: Any) -> Any:
            return image[:, :1]

    image = np.array([[0.4], [0.2], [0.9], [0.3]], "float32")
    label = np.array([0, 0, 1, 1], "float32")
    loss = L.SigmoidBinaryCrossEntropyLoss(from_sigmoid=True)
    figures = multifit.MultiEstimator(Probability(), loss).evaluate([(image, label)])
    assert figures["binary_accuracy"] == 0.75


def test_the_classes_are_where_the_loss_has_them() -> None:
    class Swapped(gluon.Block):
        def forward(self, scores: Any) -> Any:
            return scores

    scores = np.random.randn(4, 5, 3).astype("float32")  # (N, T, classes)
    label = scores.argmax(axis=2).astype("float32")
    estimator = multifit.MultiEstimator(Swapped(), L.SoftmaxCrossEntropyLoss())
    assert estimator.evaluate([(scores, label)])["accuracy"] == 1.0


def test_each_default_is_told_once(log: Callable[[], list[str]]) -> None:
    estimator = multifit.MultiEstimator(nn.Dense(3), L.SoftmaxCrossEntropyLoss())
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


def test_the_default_trainer_is_adam_at_one_thousandth() -> None:
    estimator = multifit.MultiEstimator(nn.Dense(3), L.SoftmaxCrossEntropyLoss())
    assert isinstance(estimator.trainer.optimizer, mx.optimizer.Adam)
    assert estimator.learning_rates() == {"lr": 1e-3}


def test_what_is_given_is_no_default(log: Callable[[], list[str]], make_net: Any, make_spec: Any) -> None:
    trainer = multifit.TrainerSpec(".*", "sgd", {"learning_rate": 0.1})
    multifit.MultiEstimator(make_net(), make_spec(), trainers=trainer).learning_rates()
    assert not [line for line in log() if "default" in line]


def test_a_beginner_who_configured_no_logging_sees_the_log(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = logging.getLogger("multifit")
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logger, "propagate", False)  # pytest listens at the root
    monkeypatch.setattr(logger, "level", logging.NOTSET)
    multifit.MultiEstimator(nn.Dense(3), L.SoftmaxCrossEntropyLoss())
    multifit.MultiEstimator(nn.Dense(3), L.L2Loss())
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 4  # each line once, though there are two estimators
    assert shown[1] == "default metric for SoftmaxCrossEntropyLoss: accuracy"


@pytest.mark.parametrize("net", [None, nn.Dense, "net", lambda data: data])
def test_what_is_no_net(net: Any) -> None:
    with pytest.raises(multifit.SpecError, match="not a gluon.Block; give the net itself, an instance"):
        multifit.MultiEstimator(net, L.L2Loss())


@pytest.mark.parametrize("spec", [None, "softmax", 3, L.L2Loss, {"a": L.L2Loss()}])
def test_what_is_neither_spec_nor_loss(spec: Any) -> None:
    with pytest.raises(multifit.SpecError, match="give a TaskSpec, or one loss"):
        multifit.MultiEstimator(nn.Dense(1), spec)
