"""Specs of the nets in `tests.common.nets`."""

from typing import Any

from multifit import LossSpec, MetricSpec, TaskSpec

import mxnet as mx  # isort: skip
from mxnet import gluon  # isort: skip

CE, L2 = gluon.loss.SoftmaxCrossEntropyLoss(), gluon.loss.L2Loss()
BCE = gluon.loss.SigmoidBinaryCrossEntropyLoss()


def two_head_spec(**changes: Any) -> TaskSpec:
    """Return the spec of `two_heads`: a loss for each head, and the accuracy of "digit"."""
    declared: dict[str, Any] = {
        "inputs": ["image"],
        "outputs": ["digit", "size"],
        "labels": ["digit", "size"],
        "losses": {"digit": CE, "size": L2},
        "metrics": {"accuracy": MetricSpec(mx.metric.Accuracy(), "digit", "digit")},
    }
    return TaskSpec(**{**declared, **changes})


def regression_spec(metrics: dict[str, Any]) -> TaskSpec:
    """Return the spec of a net of one input and one output, with the squared error."""
    return TaskSpec(
        inputs=["x"], outputs=["y"], labels=["y"], losses={"l2": LossSpec(L2, "y", "y")}, metrics=metrics
    )


def digit_spec(digit: float = 1.0, parity: Any = 0.5, **changes: Any) -> TaskSpec:
    """Return the spec of `digit_batches`: the weighted losses of five digits and of their parity."""
    losses = {"digit": LossSpec(CE, weight=digit), "parity": LossSpec(BCE, weight=parity)}
    declared: dict[str, Any] = {
        "inputs": ["x"],
        "outputs": ["digit", "parity"],
        "labels": ["digit", "parity"],
        "losses": losses,
    }
    return TaskSpec(**{**declared, **changes})


def one_loss_spec(loss: Any, **options: Any) -> TaskSpec:
    """Return the spec of a net with one output "out", one label "y" and one loss "l"."""
    return TaskSpec(outputs="out", labels=["y"], losses={"l": LossSpec(loss, "out", "y", **options)})
