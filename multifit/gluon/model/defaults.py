"""The TaskSpec for an estimator that is created with a loss instead of a spec."""

from __future__ import annotations

from typing import Callable

from ...errors import SpecError, shown
from ...spec import LossSpec, MetricSpec, TaskSpec
from ..compat import mx
from ..metrics import BinaryAccuracy

losses = mx.gluon.loss
METRICS = (
    (losses.SoftmaxCrossEntropyLoss, "accuracy", lambda loss: mx.metric.Accuracy(axis=loss._axis)),
    (
        losses.SigmoidBinaryCrossEntropyLoss,
        "binary_accuracy",
        lambda loss: BinaryAccuracy(0.5 if loss._from_sigmoid else 0.0),
    ),
    (losses.L2Loss, "rmse", lambda loss: mx.metric.RMSE()),
    (losses.HuberLoss, "rmse", lambda loss: mx.metric.RMSE()),
    (losses.L1Loss, "mae", lambda loss: mx.metric.MAE()),
)


def default_spec(loss: object, log_once: Callable[[str], None]) -> TaskSpec:
    """Return the TaskSpec for a net with one input, output and label, and log the defaults.

    The names are "data", "output" and "label". The metric is accuracy for softmax cross entropy, binary
    accuracy for sigmoid cross entropy, RMSE for L2 and Huber, and MAE for L1; other losses have none. Raises
    SpecError if `loss` is not a loss.
    """
    if not callable(loss) or isinstance(loss, type):
        raise SpecError(
            f"spec is {shown(loss)}; give a TaskSpec, or one loss for a net with one input, one output and "
            "one label"
        )
    kind = getattr(loss, "__name__", type(loss).__name__)
    log_once(
        f"default TaskSpec for {kind}: the net's input is called data, its output output, the label label"
    )
    metrics = {
        key: MetricSpec(metric(loss), outputs="output", labels="label")
        for known, key, metric in METRICS
        if isinstance(loss, known) and getattr(loss, "_sparse_label", True)
    }
    log_once(f"default metric for {kind}: {', '.join(metrics) or 'none, only the loss'}")
    return TaskSpec(
        inputs=["data"], outputs=["output"], labels=["label"],
        losses={"output": LossSpec(loss, outputs="output", labels="label")}, metrics=metrics,
    )  # fmt: skip
