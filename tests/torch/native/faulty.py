"""A small task that trains, faulty variants of it, and the check that a refused fit has moved nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from multifit import LossSpec, MetricSpec, MultiEstimator, SpecError, TaskSpec

KINDS = {"SpecError": "spec", "DataError": "data", "TrainerError": "trainer"}
BOTH = {"outputs": "digit", "labels": "digit"}
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


def arrays(samples: int = 8) -> list[np.ndarray]:
    """x (N, 6), amount (N, 1), float32; digit (N,) in 0 … 2, int64; in the order x, digit, amount."""
    random = np.random.RandomState(0)
    digit = random.randint(0, 3, samples)
    x = random.randn(samples, 6)
    return [x.astype("float32"), digit, x[:, :1].astype("float32")]


@dataclass(frozen=True)
class Setup:
    """Everything that a fit needs; `but` makes a variant of it around the same net."""

    net: Any
    spec: dict[str, Any]
    data: Any = field(default_factory=lambda: [arrays()])
    val_data: Any = None
    estimator: dict[str, Any] = field(default_factory=dict)
    handlers: tuple[Any, ...] = ()

    def but(self, **changes: Any) -> Setup:
        """Change fields of the setup, or else of the TaskSpec."""
        own = {name: value for name, value in changes.items() if name in self.__dataclass_fields__}
        spec = {**self.spec, **{name: value for name, value in changes.items() if name not in own}}
        return replace(self, **{"spec": spec, **own})

    def with_loss(self, *args: Any, **fields: Any) -> Setup:
        """Declare the loss "digit" otherwise; without its metric, so that one fault makes one problem."""
        return self.but(losses={**self.spec["losses"], "digit": LossSpec(*args, **fields)}, metrics={})

    def with_metric(self, *args: Any, **fields: Any) -> Setup:
        return self.but(metrics={"figure": MetricSpec(*args, **fields)})

    def with_trainers(self, trainers: Any, **more: Any) -> Setup:
        return self.but(estimator={"trainers": trainers, **more})

    def make(self) -> MultiEstimator:
        return MultiEstimator(self.net, TaskSpec(**self.spec), **self.estimator)

    def check(self, **options: Any) -> Any:
        return self.make().check(self.data, self.val_data, **options)

    def fit(self, epochs: int = 1) -> None:
        self.make().fit(self.data, self.val_data, epochs=epochs, event_handlers=list(self.handlers) or None)

    def tensors(self) -> dict[str, torch.Tensor]:
        """All parameters and buffers by name."""
        state = {name: value for name, value in self.net.state_dict().items() if not is_lazy(value)}
        return {name: value.detach().clone() for name, value in state.items()}

    def refused(self, error: type[Exception], *texts: str, way: str = "fit") -> str:
        """Check that it is refused with every text in the message, and that nothing moved.

        `way` is "fit" or "check", which look at a first batch in the same way, or "make".
        """
        if error is SpecError and not self._has_spec():
            way = "make"  # a TaskSpec that cannot be built never gets to any data
        before = self.tensors()
        with pytest.raises(error) as raised:
            getattr(self, way)()
        assert type(raised.value) is error
        message = "\n".join([str(raised.value), *getattr(raised.value, "__notes__", [])])
        for text in texts:
            assert text in message, f"{text!r} is not in {message!r}"
        if error.__name__ in KINDS:
            assert {p.kind for p in raised.value.problems} == {KINDS[error.__name__]}
            assert all(p.message in message for p in raised.value.problems)
        assert not self.moved(before), f"{way} moved parameters"
        return message

    def moved(self, before: dict[str, torch.Tensor]) -> bool:
        after = self.tensors()
        return any(not torch.equal(before[name], after[name]) for name in before)

    def trains(self) -> None:
        """Check that a fit moves parameters, and to finite values."""
        before = self.tensors()
        self.fit()
        assert self.moved(before)
        assert all(bool(value.isfinite().all()) for value in self.tensors().values())

    def _has_spec(self) -> bool:
        try:
            TaskSpec(**self.spec)
        except SpecError:
            return False
        return True


def new_setup() -> Setup:
    """Return a setup around a new net, with a spec that fits it and `arrays`."""
    spec = {
        "inputs": ["x"],
        "outputs": ["digit", "amount"],
        "labels": ["digit", "amount"],
        "losses": {"digit": CE(), "amount": LossSpec(MSE(), weight=0.5)},
        "metrics": {"accuracy": MetricSpec("accuracy", **BOTH)},
    }
    return Setup(TwoHeads(), spec)


def around(function: Callable[..., Any], **fields: Any) -> Setup:
    """Return a setup of one cross entropy around a net that is ``function(dense, *inputs)``."""
    spec = {"inputs": ["x"], "outputs": ["digit"], "labels": ["digit"], "losses": {"digit": CE()}, **fields}
    return Setup(Calls(function), spec, data=[arrays()[:2]])


def fault(name: str, change: Any, *texts: str) -> Any:
    """Return a row of a table: what to change in a setup, and texts of the message."""
    return pytest.param(change, texts, id=name)
