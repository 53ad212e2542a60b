"""A small task that trains, faulty variants of it, and the check that a rejected fit has moved nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from multifit import LossSpec, MetricSpec, MultiEstimator, SpecError, TaskSpec

import mxnet as mx  # isort: skip
from mxnet import gluon

from ..common.noted import with_notes

KINDS = {"SpecError": "spec", "DataError": "data", "TrainerError": "trainer"}
BOTH = {"outputs": "digit", "labels": "digit"}
CE, L2 = gluon.loss.SoftmaxCrossEntropyLoss, gluon.loss.L2Loss


class TwoHeads(gluon.HybridBlock):
    """(N, 6) -> digit (N, 3), amount (N, 1); with running statistics, which no rejected fit may move."""

    def __init__(self) -> None:
        super().__init__()
        self.body = gluon.nn.HybridSequential()
        self.body.add(gluon.nn.Dense(5, in_units=6, activation="relu"), gluon.nn.BatchNorm(in_channels=5))
        self.digit = gluon.nn.Dense(3, in_units=5)
        self.amount = gluon.nn.Dense(1, in_units=5)

    def hybrid_forward(self, F: Any, x: Any) -> tuple[Any, Any]:
        hidden = self.body(x)
        return self.digit(hidden), self.amount(hidden)


class Calls(gluon.Block):
    """A net that is one function on arrays, with a parameter to train."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.dense = gluon.nn.Dense(3, in_units=6)
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(self.dense, *inputs)


def arrays(samples: int = 8) -> list[np.ndarray]:
    """x (N, 6), digit (N,) in 0 … 2, amount (N, 1); float32."""
    random = np.random.RandomState(0)
    digit = random.randint(0, 3, samples)
    x = random.randn(samples, 6)
    return [x.astype("float32"), digit.astype("float32"), x[:, :1].astype("float32")]


@dataclass(frozen=True)
class Setup:
    """Everything that a fit needs; `but` makes a variant of it around the same net."""

    net: Any
    spec: dict[str, Any]
    data: Any = field(default_factory=lambda: [arrays()])
    val_data: Any = None
    estimator: dict[str, Any] = field(default_factory=dict)
    epochs: int = 1
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

    def check(self) -> None:
        self.make().check(_loader(self.data), _loader(self.val_data))

    def fit(self) -> None:
        handlers = list(self.handlers) or None
        self.make().fit(
            _loader(self.data), _loader(self.val_data), epochs=self.epochs, event_handlers=handlers
        )

    def parameters(self) -> dict[str, np.ndarray]:
        """All initialised parameters by name, on the first device; running statistics are among them."""
        return {
            name: parameter.list_data()[0].asnumpy()
            for name, parameter in self.net._collect_params_with_prefix().items()
            if parameter._data is not None
        }

    def refused(self, error: type[Exception], *texts: str, way: str = "fit") -> str:
        """Check that it is refused with every text in the message, and that nothing moved.

        `way` is "fit" or "check", which look at a first batch in the same way, or "make".
        """
        if error is SpecError and not self._has_spec():
            way = "make"  # a TaskSpec that cannot be built never gets to any data
        before = self.parameters()
        with pytest.raises(error) as raised:
            getattr(self, way)()
        assert type(raised.value) is error
        message = with_notes(raised.value)
        for text in texts:
            assert text in message, f"{text!r} is not in {message!r}"
        if error.__name__ in KINDS:
            assert {p.kind for p in raised.value.problems} == {KINDS[error.__name__]}
            assert all(p.message in message for p in raised.value.problems)
        assert not self.moved(before), f"{way} moved parameters"
        return message

    def moved(self, before: dict[str, np.ndarray]) -> bool:
        after = self.parameters()
        return any(not np.array_equal(before[name], after[name]) for name in before)

    def trains(self) -> None:
        """Check that a fit moves parameters, and to finite values."""
        before = self.parameters()
        self.fit()
        assert self.moved(before)
        assert all(np.isfinite(value).all() for value in self.parameters().values())

    def _has_spec(self) -> bool:
        try:
            TaskSpec(**self.spec)
        except SpecError:
            return False
        return True


def _loader(data: Any) -> Any:
    return data() if callable(data) else data


def new_setup(initialized: bool = True) -> Setup:
    """Return a setup around a new net, with a spec that fits it and `arrays`."""
    spec = {
        "inputs": ["x"],
        "outputs": ["digit", "amount"],
        "labels": ["digit", "amount"],
        "losses": {"digit": CE(), "amount": LossSpec(L2(), weight=0.5)},
        "metrics": {"accuracy": MetricSpec(mx.metric.Accuracy(), outputs="digit", labels="digit")},
    }
    net = TwoHeads()
    if initialized:
        net.initialize()
    return Setup(net, spec)


def around(function: Callable[..., Any], **fields: Any) -> Setup:
    """Return a setup of one softmax loss around a net that is ``function(dense, *inputs)``."""
    spec = {"inputs": ["x"], "outputs": ["digit"], "labels": ["digit"], "losses": {"digit": CE()}, **fields}
    net = Calls(function)
    net.initialize()
    return Setup(net, spec, data=[arrays()[:2]])


def fault(name: str, change: Any, *texts: str) -> Any:
    """Return a row of a table: what to change in a setup, and texts of the message."""
    return pytest.param(change, texts, id=name)
