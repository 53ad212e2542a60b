"""The names that multifit exports, and their arguments."""

import inspect
from operator import attrgetter

import pytest

import multifit

EXPORTS = [
    "CheckpointHandler", "CutMix", "DataError", "DeltaM", "EarlyStoppingHandler", "Every", "Freeze",
    "GradientNoise", "Handler", "HandlerError", "History", "Interpretation",
    "InterruptHandler", "LabelSmoothing", "LabelSpec", "LogFile", "LogTo", "LoggingHandler",
    "LossSpec", "MetricHandler", "MetricSpec", "MixUp", "MultiEstimator", "PeerError", "Plan",
    "PlateauHandler", "Priority", "Problem", "ProgressBar", "Prune", "RunState", "Sharded", "Shards",
    "SkipNonFinite", "SpecError", "StoppingHandler", "TaskSpec", "TensorBoardHandler", "TerminateOnNaN",
    "TrainerError", "TrainerSpec", "ValidationHandler", "WeightAveraging", "World",
    "batches", "connect", "loggers", "losses", "metrics", "schedules", "write_report",
]  # fmt: skip


def test_the_exports_are_these() -> None:
    assert multifit.__all__ == EXPORTS
    assert all(hasattr(multifit, name) for name in EXPORTS)
    assert multifit.loggers.__all__ == ["Comet", "MLflow", "WandB"]
    assert multifit.losses.__all__ == ["SegmentationCELoss", "SequenceCELoss"]
    assert multifit.metrics.__all__ == ["BinaryAccuracy"]
    assert multifit.schedules.__all__ == ["OneCycle", "WarmUp", "piecewise", "ramp"]


SIGNATURES: dict[str, str] = {
    "MultiEstimator": "net spec trainers context initializer frozen precision balance accumulate world "
    "engine compile",
    "MultiEstimator.fit": "self train_data val_data epochs batches event_handlers resume batch_axis sampling "
    "val_batches overfit output seed",
    "TaskSpec": "outputs labels losses metrics inputs batch unused forward batch_fn evaluate name state",
    "LossSpec": "fn outputs labels weight returns minimize normalize_by class_weights sample_weight "
    "arguments trainers",
    "MetricSpec": "metric outputs labels losses mode stage transform names sample_weight arguments",
    "TrainerSpec": "params optimizer optimizer_params lr_scheduler clip_norm every accumulate",
    "LabelSpec": "name dtype classes ignore missing",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_the_signatures_are_the_contract(name: str) -> None:
    function = attrgetter(name)(multifit)
    assert list(inspect.signature(function).parameters) == SIGNATURES[name].split()


def test_submodules_and_names_are_attributes_of_the_package() -> None:
    assert multifit.estimator.MultiEstimator is multifit.MultiEstimator
    assert {"Every", "TaskSpec"} <= {*dir(multifit)} and not hasattr(multifit, "x")
