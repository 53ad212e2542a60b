"""Handlers, schedules and losses that are constructed with anything: they work, or name the argument."""

from __future__ import annotations

import inspect
from typing import Any, Iterator

import mxnet as mx
import pytest

import multifit
from multifit import losses, metrics, schedules

MODULES: list[Any] = [multifit, losses, metrics, schedules]
ABSURD = [None, "x", "\0", b"x", [], {}, [[]], object(), True, -1, 0.5, float("nan"), float("inf"), 10**400]
ABSURD += [{0: "x"}, {10**400: 1}, "x" * 3000, lambda: 1, int, 3j, ["x", 3]]
NEEDED: dict[str, dict[str, Any]] = {
    "CheckpointHandler": {"folder": "run"},
    "EarlyStoppingHandler": {"monitor": "val_loss"},
    "Every": {"n": 1},
    "GradientAccumulation": {"n": 1},
    "LogFile": {"path": "log"},
    "OneCycle": {"max_lr": 0.1, "steps": 10},
    "PlateauHandler": {"monitor": "val_loss"},
    "TensorBoardHandler": {"folder": "run"},
    "ValidationHandler": {"val_data": [1]},
    "WarmUp": {"scheduler": mx.lr_scheduler.FactorScheduler(10), "steps": 10},
    "piecewise": {"weights": {0: 1.0}},
    "ramp": {"start": 0.0, "end": 1.0, "steps": 3},
}
DECLARATIONS = ("Spec", "Estimator", "Error", "History", "Plan", "Problem", "Priority", "RunState")


def constructors() -> Iterator[tuple[str, Any]]:
    for module in MODULES:
        for name in module.__all__:
            if callable(getattr(module, name)) and not name.endswith(DECLARATIONS):
                yield name, getattr(module, name)


@pytest.mark.parametrize(("name", "constructor"), list(constructors()))
def test_an_absurd_argument_is_accepted_or_named(name: str, constructor: Any) -> None:
    needed = NEEDED.get(name, {})
    constructor(**needed)
    for parameter in inspect.signature(constructor).parameters.values():
        for value in ABSURD if parameter.kind == parameter.POSITIONAL_OR_KEYWORD else ():
            try:
                constructor(**{**needed, parameter.name: value})
            except ValueError as error:
                message = str(error)
                assert name in message and parameter.name in message and len(message) < 600
