"""A small task that trains, its faulty variants, and the proof that a refusal has moved nothing."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Callable

import numpy as np
import pytest

from multifit import LossSpec, MetricSpec, MultiEstimator, TaskSpec

import mxnet as mx  # isort: skip
from mxnet import gluon

KINDS = {"SpecError": "spec", "DataError": "data", "TrainerError": "trainer"}


class TwoHeads(gluon.HybridBlock):
    """(N, 6) -> digit (N, 3), amount (N, 1); and running statistics, which no refusal may move."""

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
    """A net that is one function on arrays, with a parameter so that there is something to train."""

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


def declared() -> dict[str, Any]:
    """The fields of a TaskSpec that fits TwoHeads and `arrays`."""
    return {
        "inputs": ["x"],
        "outputs": ["digit", "amount"],
        "labels": ["digit", "amount"],
        "losses": {
            "digit": gluon.loss.SoftmaxCrossEntropyLoss(),
            "amount": LossSpec(gluon.loss.L2Loss(), weight=0.5),
        },
        "metrics": {"accuracy": MetricSpec(mx.metric.Accuracy(), outputs="digit", labels="digit")},
    }


@dataclass(frozen=True)
class Setup:
    """Everything that a fit needs; `but` makes a variant of it around the same net."""

    net: Any
    spec: dict[str, Any]
    data: Any = field(default_factory=lambda: [arrays()])
    val_data: Any = None
    estimator: dict[str, Any] = field(default_factory=dict)
    epochs: int = 1

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
        self.make().fit(_loader(self.data), _loader(self.val_data), epochs=self.epochs)

    def parameters(self) -> dict[str, np.ndarray]:
        """All initialised parameters by name, on the first device; running statistics are among them."""
        return {
            name: parameter.list_data()[0].asnumpy()
            for name, parameter in self.net._collect_params_with_prefix().items()
            if parameter._data is not None
        }

    def refused(self, error: type[Exception], *texts: str, ways: tuple[str, ...] = ("check", "fit")) -> str:
        """Demand that `check` and `fit` refuse with every text in the message, and that nothing moved."""
        for way in ways:
            before = self.parameters()
            with pytest.raises(error) as raised:
                getattr(self, way)()
            assert type(raised.value) is error
            message = str(raised.value)
            for text in texts:
                assert text in message, f"{way}: {text!r} is not in {message!r}"
            if error.__name__ in KINDS:
                assert {p.kind for p in raised.value.problems} == {KINDS[error.__name__]}
                assert all(p.message in message for p in raised.value.problems)
            after = self.parameters()
            assert all(np.array_equal(before[name], after[name]) for name in before), (
                f"{way} moved parameters"
            )
        return message

    def trains(self) -> None:
        """Demand that a fit moves parameters, and to finite values."""
        before = self.parameters()
        self.fit()
        after = self.parameters()
        assert any(not np.array_equal(before[name], after[name]) for name in before)
        assert all(np.isfinite(value).all() for value in after.values())


def _loader(data: Any) -> Any:
    return data() if callable(data) else data


def initialized(net: Any, context: Any = None) -> Any:
    net.initialize(ctx=context or mx.cpu(0))
    return net


@pytest.fixture
def setup() -> Setup:
    return Setup(initialized(TwoHeads()), declared())


@pytest.fixture
def around() -> Callable[[Callable[..., Any]], Setup]:
    """Make a setup of one softmax loss around a net that is the given ``function(dense, *inputs)``."""

    def made(function: Callable[..., Any], **fields: Any) -> Setup:
        spec = {
            "inputs": ["x"],
            "outputs": ["digit"],
            "labels": ["digit"],
            "losses": {"digit": gluon.loss.SoftmaxCrossEntropyLoss()},
        }
        return Setup(initialized(Calls(function)), {**spec, **fields}, data=[arrays()[:2]])

    return made
