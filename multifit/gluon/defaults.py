"""The short form: a TaskSpec for a net with one input, one output and one label, from its loss alone."""

from __future__ import annotations

from typing import Any

from ..spec import LossSpec, MetricSpec, TaskSpec
from .compat import mx
from .metrics import BinaryAccuracy

__all__ = ["default_spec"]

_LOSSES = mx.gluon.loss
METRICS = (
    (_LOSSES.SoftmaxCrossEntropyLoss, "accuracy", lambda loss: mx.metric.Accuracy(axis=loss._axis)),
    (
        _LOSSES.SigmoidBinaryCrossEntropyLoss,
        "binary_accuracy",
        lambda loss: BinaryAccuracy(0.5 if loss._from_sigmoid else 0.0),
    ),
    (_LOSSES.L2Loss, "rmse", lambda loss: mx.metric.RMSE()),
    (_LOSSES.HuberLoss, "rmse", lambda loss: mx.metric.RMSE()),
    (_LOSSES.L1Loss, "mae", lambda loss: mx.metric.MAE()),
)


def default_spec(loss: Any) -> tuple[TaskSpec, list[str]]:
    """Return the TaskSpec for a single loss, and a line for each default.

    Softmax cross-entropy is measured by accuracy, sigmoid cross-entropy by binary accuracy, L2 and Huber by
    RMSE, L1 by MAE; any other loss by itself alone.
    """
    kind = getattr(loss, "__name__", type(loss).__name__)
    notices = [
        f"default TaskSpec for {kind}: the net's input is called data, its output output, the label label"
    ]
    metrics = {
        key: MetricSpec(metric(loss), outputs="output", labels="label")
        for known, key, metric in METRICS
        if isinstance(loss, known) and getattr(loss, "_sparse_label", True)
    }
    notices.append(f"default metric for {kind}: {', '.join(metrics) or 'none, the loss alone'}")
    spec = TaskSpec(
        inputs=["data"], outputs=["output"], labels=["label"],
        losses={"output": LossSpec(loss, outputs="output", labels="label")}, metrics=metrics,
    )  # fmt: skip
    return spec, notices
