"""An update takes as few kernels as if there were few parameters, and never waits for the device."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from multifit.gluon.compat import mx
from multifit.gluon.optim import own_optimizers  # noqa: F401 (registers them)
from multifit.torch.from_gluon.rules import RULES, Group

OPTIONS: dict[str, dict[str, Any]] = {
    "lamb": {"lower_bound": 0.1, "upper_bound": 10.0},
    "nag": {"momentum": 0.9},
    "rmsprop": {"centered": True, "clip_weights": 1.0},
    "sgd": {"momentum": 0.9},
}


class Count(TorchDispatchMode):
    """Counts the operators that are called."""

    calls = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        return function(*args, **(kwargs or {}))


def settings(name: str) -> Any:
    if name == "bertadam":
        pytest.importorskip("gluonnlp")
    return mx.optimizer.create(name, rescale_grad=0.5, clip_gradient=1.0, wd=0.1, **OPTIONS.get(name, {}))


def calls(name: str, parameters: int) -> int:
    """Return how many operators an update calls, on a device that has no values to wait for."""
    options = settings(name)
    weights = [torch.ones(2 + i, 3, device="meta") for i in range(parameters)]
    gradients = [torch.ones_like(weight) for weight in weights]
    states = [(torch.zeros_like(each),) * RULES[name].states(options) for each in weights]
    numbers = [0.1 * (1 + i) for i in range(parameters)]
    group = Group(weights, gradients, states, numbers, numbers, [1 + i for i in range(parameters)])
    with Count() as count, torch.no_grad():
        RULES[name].update(options, group)
    return count.calls


@pytest.mark.parametrize("name", sorted(RULES))
def test_an_update_calls_no_more_operators_for_more_parameters(name: str) -> None:
    assert calls(name, 20) == calls(name, 2) > 0
