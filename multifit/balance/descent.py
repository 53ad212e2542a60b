"""One step of gradient descent on numbers that a method learns while the net is trained."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..arguments import one_of
from .measured import Measured
from .protocol import State

OPTIMIZERS = one_of("adam", "sgd")
MEAN, SQUARE, EPSILON = 0.9, 0.999, 1e-8


def started(values: float, tasks: int, optimizer: str) -> State:
    """Return the state of `tasks` numbers that all start at `values`."""
    names = ("mean", "square", "count") if optimizer == "adam" else ()
    return {"values": np.full(tasks, values), **{name: np.zeros(tasks) for name in names}}


def descended(measured: Measured, state: State, gradient: Any, rate: float, optimizer: str = "adam") -> State:
    """Return the state after one step against the gradient; the numbers of absent tasks do not change.

    "adam" has the usual constants; each task counts its own steps.

    References
    ----------
    D. P. Kingma, J. Ba: Adam: A Method for Stochastic Optimization. 2015, arXiv:1412.6980.
    """
    F, there = measured.F, measured.present
    gradient = gradient * there
    if optimizer == "sgd":
        return {"values": state["values"] - rate * gradient}
    count = state["count"] + there
    mean = state["mean"] + (1 - MEAN) * (gradient - state["mean"]) * there
    square = state["square"] + (1 - SQUARE) * (gradient * gradient - state["square"]) * there
    at_least_1 = F.maximum(count, 1.0)
    corrected = F.sqrt(square / (1 - _power(F, SQUARE, at_least_1))) + EPSILON
    step = rate * there * mean / (1 - _power(F, MEAN, at_least_1)) / corrected
    return {"values": state["values"] - step, "mean": mean, "square": square, "count": count}


def _power(F: Any, base: float, exponent: Any) -> Any:
    return F.exp(math.log(base) * exponent)
