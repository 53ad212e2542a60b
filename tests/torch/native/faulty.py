"""A small task that trains, faulty variants of it, and the check that a refused fit has moved nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import nn
from torch.nn.parameter import is_lazy

from multifit import LossSpec, MetricSpec
from tests.common.faulty import BOTH, Faulty, arrays, fault

__all__ = ["BOTH", "CE", "MSE", "Setup", "around", "arrays", "fault", "new_setup"]

CE, MSE = nn.CrossEntropyLoss, nn.MSELoss


class TwoHeads(nn.Module):
    """(N, 6) -> digit (N, 3), amount (N, 1); with running statistics, which no refused fit may move."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.BatchNorm1d(5))
        self.digit, self.amount = nn.Linear(5, 3), nn.Linear(5, 1)

    def forward(self, x: Any) -> Any:
        hidden = self.body(x)
        return self.digit(hidden), self.amount(hidden)


class Calls(nn.Module):
    """A net that is one function on tensors, with a parameter to train."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.dense, self.function = nn.Linear(6, 3), function

    def forward(self, *inputs: Any) -> Any:
        return self.function(self.dense, *inputs)


class Setup(Faulty):
    """A setup around a module."""

    def parameters(self) -> dict[str, np.ndarray]:
        state = {name: value for name, value in self.net.state_dict().items() if not is_lazy(value)}
        return {name: value.numpy(force=True).copy() for name, value in state.items()}


def new_setup() -> Setup:
    """Return a setup around a new net, with a spec that fits it and `arrays`."""
    spec = {
        "inputs": ["x"],
        "outputs": ["digit", "amount"],
        "labels": ["digit", "amount"],
        "losses": {"digit": CE(), "amount": LossSpec(MSE(), weight=0.5)},
        "metrics": {"accuracy": MetricSpec("accuracy", **BOTH)},
    }
    return Setup(TwoHeads(), spec, data=[arrays()])


def around(function: Callable[..., Any], **fields: Any) -> Setup:
    """Return a setup of one cross entropy around a net that is ``function(dense, *inputs)``."""
    spec = {"inputs": ["x"], "outputs": ["digit"], "labels": ["digit"], "losses": {"digit": CE()}, **fields}
    return Setup(Calls(function), spec, data=[arrays()[:2]])
