"""Handlers, schedules, losses and metrics with wrong arguments: the message names each of them."""

import re
from collections.abc import Iterator
from pathlib import Path
from threading import TIMEOUT_MAX
from types import SimpleNamespace
from typing import Any

import mxnet as mx
import pytest

import multifit
from multifit import Every, losses, metrics, schedules

NAN, INF = float("nan"), float("inf")
MODULES: list[Any] = [multifit, losses, metrics, schedules]
DECLARATIONS = ("Spec", "Estimator", "Error", "History", "Plan", "Problem", "Priority", "RunState")
NEEDED: dict[str, dict[str, Any]] = {
    "CheckpointHandler": {"folder": "run"},
    "EarlyStoppingHandler": {"monitor": "val_loss"},
    "Every": {"n": 1},
    "LogFile": {"path": "log"},
    "LogTo": {"logger": SimpleNamespace(log_figures=print)},
    "OneCycle": {"max_lr": 0.1, "steps": 10},
    "PlateauHandler": {"monitor": "val_loss"},
    "Prune": {"trial": None, "monitor": "val_loss"},
    "Sharded": {"loader": [1]},
    "TensorBoardHandler": {"folder": "run"},
    "ValidationHandler": {"val_data": [1]},
    "WarmUp": {"scheduler": mx.lr_scheduler.FactorScheduler(10), "steps": 10},
    "piecewise": {"weights": {0: 1.0}},
    "ramp": {"start": 0.0, "end": 1.0, "steps": 3},
}
CONSTRUCTORS = {
    name: getattr(module, name)
    for module in MODULES
    for name in module.__all__
    if callable(getattr(module, name)) and not name.endswith(DECLARATIONS)
}


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is written by a constructor."""
    monkeypatch.chdir(tmp_path)
    yield
    assert list(tmp_path.iterdir()) == []


FROM_0, FROM_1 = "a whole number of at least 0", "a whole number of at least 1"
POSITIVE, NOT_NEGATIVE = "a finite number above 0", "a finite number of at least 0"
SHARE, OPEN_SHARE = f"{NOT_NEGATIVE} and below 1", f"{POSITIVE} and below 1"
NAMES = "a name, a list of names or None"
GROUPS = 'a dict of lists of losses, such as {"detection": ["cls", "box"]} or None'
SEED = f"{FROM_0} and below 4294967296 or None"
MIN_MAX, FIGURES = '"min", "max" or None', 'a name such as "val_loss", a list of names'
CLOCK, FLAG = "a function without arguments", "True or False"
SIGNALS = "InterruptHandler: signals is"
# fmt: off
ARGUMENTS: list[tuple[str, str, str, list[Any]]] = [  # constructor, argument, what is valid, what is not
    ("CheckpointHandler", "folder", "a path", [3]),
    ("CheckpointHandler", "every", f'{FROM_1}, Every(n, "batch") without a handler or None',
     [0, "epoch", Every(2, "batch", multifit.StoppingHandler())]),
    ("CheckpointHandler", "monitor", f"{FIGURES}, a function of 1 argument or None", [3, []]),
    ("CheckpointHandler", "mode", MIN_MAX, [3]),
    ("CheckpointHandler", "keep_best", FROM_0, [-1]),
    ("CheckpointHandler", "seed", SEED, [1.5, -1, 2**32]),
    ("CutMix", "alpha", POSITIVE, [0, NAN]),
    ("CutMix", "label", NAMES, [()]),
    ("EarlyStoppingHandler", "monitor", f"{FIGURES} or a function of 1 argument", [3, None]),
    ("EarlyStoppingHandler", "patience", FROM_0, [-1]),
    ("EarlyStoppingHandler", "baseline", "a finite number or None", ["x", NAN]),
    ("EarlyStoppingHandler", "restore_best", FLAG, ["no"]),
    ("Every", "n", FROM_1, [0, 1.5, True]),
    ("Every", "unit", '"epoch" or "batch"', [[], 3]),
    ("Every", "skip", FROM_0, [-1]),
    ("GradientNoise", "eta", NOT_NEGATIVE, [-1, NAN]),
    ("GradientNoise", "random", "a function or None", [3]),
    ("LabelSmoothing", "epsilon", SHARE, [-0.1, 1, NAN]),
    ("LabelSmoothing", "loss", NAMES, [(), 3]),
    ("LogTo", "every", f"{FROM_1} or None", [0, 1.5]),
    ("LogTo", "files", "a list of paths", ["log", [3]]),
    ("LoggingHandler", "log_interval", f'"epoch" or {FROM_1}', [0, 2.5, True]),
    ("LoggingHandler", "clock", CLOCK, [3]),
    ("MixUp", "inputs", NAMES, [(), [3]]),
    ("MixUp", "alpha", POSITIVE, [0, -1, NAN, INF]),
    ("PlateauHandler", "factor", OPEN_SHARE, [0, 1.0, NAN]),
    ("PlateauHandler", "min_lr", NOT_NEGATIVE, [NAN]),
    ("ProgressBar", "stream", "a text stream or None", [3]),
    ("ProgressBar", "refresh", NOT_NEGATIVE, [-1]),
    ("Prune", "monitor", 'a name such as "val_loss"', [3, None]),
    ("StoppingHandler", "max_epoch", f"{FROM_1} or None", [0, 2.5, "3"]),
    ("StoppingHandler", "max_seconds", f"{POSITIVE} or None", [0, NAN, INF]),
    ("StoppingHandler", "condition", "a function of the run's state or None", ["late"]),
    ("TensorBoardHandler", "every", f"{FROM_1} or None", [0, "epoch"]),
    ("ValidationHandler", "batch_period", f"{FROM_1} or None", [1.5]),
    ("connect", "kind", '"auto", "none", "horovod" or "torch"', [3]),
    ("connect", "timeout", f"{POSITIVE} and below {TIMEOUT_MAX:.10g}", [0, INF]),
    ("WeightAveraging", "kind", '"ema" or "swa"', [None]),
    ("WeightAveraging", "decay", SHARE, [1]),
    ("WeightAveraging", "apply", FLAG, ["no"]),
    ("OneCycle", "max_lr", POSITIVE, [0, "1"]),
    ("OneCycle", "steps", FROM_1, [0, 1.5]),
    ("OneCycle", "warm", OPEN_SHARE, [0, 1]),
    ("OneCycle", "start_divisor", "a finite number of at least 1", [0.5]),
    ("WarmUp", "scheduler", "an instance with a base_lr, such as OneCycle(0.01, 1000)",
     [1e-3, mx.lr_scheduler.FactorScheduler]),
    ("WarmUp", "start", NOT_NEGATIVE, [-1]),
    ("ramp", "start", NOT_NEGATIVE, [-1, True]),
    ("ramp", "steps", f"{FROM_1} or None", [0]),
    ("piecewise", "weights", "a dict with epoch 0, such as {0: 0.1, 5: 1.0}: 0.1 for five epochs, then 1",
     [{1: 1.0}, 3]),
    ("SequenceCELoss", "axis", "-1 or 2 for logits (N, T, V), 1 for (N, V, T)", [0, 3, -2, None]),
    ("SegmentationCELoss", "ignore_label", "a whole number or None", ["x"]),
    ("BinaryAccuracy", "threshold", "a finite number", [None]),
]
OTHERS: list[tuple[str, dict[str, Any], str]] = [  # constructor, its arguments, the message
    ("Every", {"unit": "batches"}, "Every: unit is 'batches' (did you mean \"batch\"?); valid is"),
    ("InterruptHandler", {"signals": "SIGTREM"}, f"{SIGNALS} 'SIGTREM' (did you mean \"SIGTERM\"?); valid"),
    ("InterruptHandler", {"signals": ["SIGINT", "SIGKILL"]}, f"{SIGNALS} ['SIGINT', 'SIGKILL']; valid is"),
    ("ValidationHandler", {"epoch_period": None}, "ValidationHandler would never evaluate: give"),
    *((name, {"figures": "("}, 'figures: "(" is not a valid regular expression')
      for name in ("LoggingHandler", "ProgressBar")),
    ("ramp", {"steps": None}, "ramp was given epochs=None and steps=None; give exactly one of them"),
    ("piecewise", {"weights": {0: 1, -1: 1}}, f"piecewise: an epoch of weights is -1; valid is {FROM_0}"),
    ("piecewise", {"weights": {0: 1, 2: -1}}, f"piecewise: weights[2] is -1; valid is {NOT_NEGATIVE}"),
]
# fmt: on


@pytest.mark.parametrize(("name", "argument", "valid", "values"), ARGUMENTS)
def test_an_invalid_argument_is_named_with_what_is_valid(
    name: str, argument: str, valid: str, values: list[Any]
) -> None:
    for value in values:
        with pytest.raises(ValueError) as caught:
            CONSTRUCTORS[name](**{**NEEDED.get(name, {}), argument: value})
        assert str(caught.value) == f"{name}: {argument} is {value!r}; valid is {valid}"


@pytest.mark.parametrize(("name", "arguments", "message"), OTHERS)
def test_other_invalid_arguments(name: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        CONSTRUCTORS[name](**{**NEEDED.get(name, {}), **arguments})
