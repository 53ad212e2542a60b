"""Public classes and methods with right arguments, and how a case calls them with others."""

from __future__ import annotations

import tempfile
from typing import Any

import multifit
from multifit import MultiEstimator

from .cases import Setup
from .data import arrays
from .nets import net
from .values import Named, make


def right(name: str, folder: str) -> dict[str, Any]:
    """Return right arguments of one of `CALLS`."""
    return {key: folder + value if key in ("folder", "path") else value for key, value in CALLS[name].items()}


CALLS: dict[str, dict[str, Any]] = {
    "CheckpointHandler": {
        "folder": "/c",
        "every": 1,
        "monitor": None,
        "mode": None,
        "keep_last": 2,
        "keep_best": 1,
        "seed": None,
    },
    "EarlyStoppingHandler": {
        "monitor": "train_loss",
        "mode": "min",
        "patience": 1,
        "min_delta": 0.0,
        "baseline": 1.0,
        "restore_best": False,
    },
    "Every": {"n": 2, "unit": "batch", "handler": None, "skip": 0},
    "GradientConflicts": {"every": 2, "on": "features", "tasks": {"a": ["x"]}},
    "GradientNoise": {"eta": 0.1, "gamma": 0.5, "random": None},
    "History": {"figures": {"train_loss": [1.0]}},
    "InterruptHandler": {"signals": ()},
    "LabelSmoothing": {"epsilon": 0.1, "loss": "p"},
    "LabelSpec": {"name": "y", "dtype": None, "classes": 3, "ignore": None, "missing": None},
    "LogFile": {"path": "/log.csv"},
    "LoggingHandler": {"log_interval": 1, "figures": None},
    "LossSpec": {"fn": None, "weight": 1.0, "trainers": None},
    "MetricSpec": {"metric": None},
    "MixUp": {"inputs": "x", "label": "y", "loss": "p", "alpha": 0.4, "random": 3},
    "PlateauHandler": {
        "monitor": "train_loss",
        "factor": 0.1,
        "patience": 1,
        "min_delta": 0.0,
        "cooldown": 0,
        "min_lr": 0.0,
        "mode": "min",
        "trainers": "all",
    },
    "ProgressBar": {"refresh": 0.5, "enabled": False, "figures": None},
    "Sharded": {"loader": [1]},
    "SkipNonFinite": {},
    "StoppingHandler": {"max_epoch": None, "max_batch": 2, "max_seconds": 5.0, "condition": None},
    "TensorBoardHandler": {"folder": "/t", "every": 1, "weights": False, "pictures": None},
    "TerminateOnNaN": {"every": 1},
    "TrainerSpec": {"params": ".*", "clip_norm": 1.0, "every": 2, "accumulate": False},
    "ValidationHandler": {
        "val_data": [arrays()],
        "epoch_period": 1,
        "batch_period": None,
        "skip": 0,
        "event_handlers": None,
    },
    "WeightAveraging": {"kind": "ema", "decay": 0.9, "start": 0, "every": 1, "apply": True},
    "schedules.OneCycle": {
        "max_lr": 0.1,
        "steps": 4,
        "warm": 0.25,
        "start_divisor": 25.0,
        "final_divisor": 1e5,
    },
    "schedules.WarmUp": {"scheduler": Named("scheduler"), "steps": 2, "start": 0.0},
    "schedules.ramp": {"start": 0.0, "end": 1.0, "epochs": 2, "steps": None},
    "schedules.piecewise": {"weights": {0: 1.0, 2: 0.5}},
    "losses.SequenceCELoss": {"axis": -1, "sparse_label": True, "weight": None},
    "losses.SegmentationCELoss": {"ignore_label": -1, "axis": 1, "weight": None},
    "metrics.BinaryAccuracy": {"threshold": 0.0, "name": "b"},
    "World": {"communicator": multifit.connect("none").communicator, "timeout": 5.0},
    "connect": {"kind": "none", "timeout": 5.0},
    "estimator.fit": {"epochs": 1, "batches": None, "event_handlers": None, "resume": None},
    "estimator.evaluate": {"event_handlers": None, "batch_axis": 0},
    "estimator.figures": {"stage": "train"},
    "estimator.direction": {"figure": "train_loss"},
    "estimator.export": {"folder": "/e", "format": "gluon"},
    "estimator.find_learning_rate": {"start": 1e-3, "end": 0.1, "batches": 2, "trainer": "all"},
    "estimator.profile": {"batches": 1, "event_handlers": None},
    "TaskSpec.combine": {"shared": ["x"], "a": Named("spec"), "b": Named("spec")},
}
NEEDS_DATA = {
    "estimator.fit": "train_data", "estimator.evaluate": "data", "estimator.find_learning_rate": "data",
    "estimator.profile": "train_data",
}  # fmt: skip
HANDLERS = [
    name for name in CALLS
    if isinstance(getattr(multifit, name, None), type) and hasattr(getattr(multifit, name), "priority")
]  # fmt: skip


def called(name: str, changes: dict[str, Any]) -> tuple[Any, Any]:
    """Call one of `CALLS` with changed arguments; return the result and the estimator, if any."""
    folder = tempfile.mkdtemp(dir=".")
    arguments = {key: make(value) for key, value in {**right(name, folder), **changes}.items()}
    owner, _, attribute = name.rpartition(".")
    if owner == "estimator":
        estimator = fitted() if attribute in ("export", "figures") else tiny_estimator()
        data = {NEEDS_DATA[name]: [arrays()]} if name in NEEDS_DATA else {}
        return getattr(estimator, attribute)(**{**data, **arguments}), estimator
    if name in HANDLERS and not owner:
        handler = getattr(multifit, name)(**arguments)
        handlers = [multifit.Every(1, "batch", handler), handler][-1:]
        estimator = tiny_estimator()
        estimator.fit([arrays()], batches=2, event_handlers=handlers)
        return handler, estimator
    target = multifit
    for part in name.split("."):
        target = getattr(target, part)
    return target(**arguments), None  # type: ignore[operator]


def tiny_estimator() -> MultiEstimator:
    setup = Setup(())
    return MultiEstimator(net(), setup.spec(), setup.trainers())


def fitted() -> MultiEstimator:
    estimator = MultiEstimator(net("hybridized"), Setup(()).spec())
    estimator.fit([arrays()], batches=1)
    return estimator
