"""What multifit exports: nothing comes and nothing goes unseen."""

from __future__ import annotations

import inspect

import multifit

EXPORTS = [
    "MOMENTS",
    "DataError",
    "EarlyStoppingHandler",
    "Every",
    "HandlerError",
    "History",
    "LabelSpec",
    "LoggingHandler",
    "LossSpec",
    "MetricHandler",
    "MetricSpec",
    "MultiEstimator",
    "Plan",
    "Priority",
    "Problem",
    "ProgressBar",
    "RunState",
    "SpecError",
    "StoppingHandler",
    "TaskSpec",
    "TrainerError",
    "TrainerSpec",
    "UserCodeError",
    "ValidationHandler",
    "losses",
    "metrics",
]


def test_the_exports_are_these() -> None:
    assert multifit.__all__ == EXPORTS
    assert all(hasattr(multifit, name) for name in EXPORTS)
    assert multifit.losses.__all__ == ["SegmentationCELoss", "SequenceCELoss"]
    assert multifit.metrics.__all__ == ["BinaryAccuracy"]


def test_everything_exported_is_documented() -> None:
    classes = [value for name in EXPORTS if inspect.isclass(value := getattr(multifit, name))]
    assert classes
    assert not [kind.__name__ for kind in classes if not kind.__doc__]


def test_the_signatures_are_the_contract() -> None:
    estimator = inspect.signature(multifit.MultiEstimator)
    assert str(list(estimator.parameters)) == str(
        ["net", "spec", "trainers", "context", "initializer", "frozen"]
    )
    assert list(inspect.signature(multifit.MultiEstimator.fit).parameters) == [
        "self", "train_data", "val_data", "epochs", "batches", "event_handlers",
    ]  # fmt: skip
    assert list(inspect.signature(multifit.TaskSpec).parameters) == [
        "outputs", "labels", "losses", "metrics", "inputs", "batch", "unused", "forward", "batch_fn",
        "evaluate", "name",
    ]  # fmt: skip
    assert list(inspect.signature(multifit.LossSpec).parameters) == [
        "fn", "outputs", "labels", "weight", "returns", "minimize", "normalize_by", "scope", "arguments",
    ]  # fmt: skip
    assert list(inspect.signature(multifit.MetricSpec).parameters) == [
        "metric", "outputs", "labels", "losses", "mode", "stage", "transform", "names", "arguments",
    ]  # fmt: skip
    assert list(inspect.signature(multifit.TrainerSpec).parameters) == [
        "params", "optimizer", "optimizer_params", "lr_scheduler", "clip_norm",
    ]  # fmt: skip
    assert list(inspect.signature(multifit.LabelSpec).parameters) == ["name", "dtype", "classes", "ignore"]
