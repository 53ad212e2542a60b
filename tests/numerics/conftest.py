"""The hand-written Gluon loop that everything here is compared with, and what such a comparison needs."""

from __future__ import annotations

from typing import Any, Callable, Iterable, Sequence

import numpy as np
import pytest

from multifit import MultiEstimator, TaskSpec

import mxnet as mx  # isort: skip
from mxnet import autograd, gluon  # isort: skip
from mxnet.gluon import nn  # isort: skip

RTOL, ATOL = 2e-4, 2e-5
ONE, TWO = [mx.cpu(0)], [mx.cpu(0), mx.cpu(1)]


class TwoHeads(gluon.HybridBlock):
    """A body with a head of five classes and a head of one logit."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Dense(16, activation="relu")
        self.digit = nn.Dense(5)
        self.parity = nn.Dense(1)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        hidden = self.body(x)
        return self.digit(hidden), self.parity(hidden)


class LoggingHandler:
    """Stands in for the default of the same name, and says nothing."""

    def epoch_begin(self, estimator: Any, batches: int | None = None) -> None:
        pass


class ProgressBar(LoggingHandler):
    """Stands in for the default of the same name, and shows nothing."""


def loop_by_hand(
    net: Any, trainers: Sequence[Any], batches: Iterable[tuple], objective: Callable[..., Any]
) -> None:
    """Train on one device as Gluon's tutorials do: ``objective(net, *batch)`` is the loss of each sample."""
    for batch in batches:
        with autograd.record():
            loss = objective(net, *[mx.nd.array(array, dtype=array.dtype) for array in batch])
        loss.backward()
        for trainer in trainers:
            trainer.step(len(batch[0]), ignore_stale_grad=True)


def run_estimator(
    net: Any, spec: TaskSpec, batches: list, context: Any = None, trainers: Any = None, **options: Any
) -> MultiEstimator:
    """Fit for one epoch, without a word."""
    estimator = MultiEstimator(net, spec, trainers=trainers, context=context, **options)
    estimator.fit(batches, epochs=1, event_handlers=[LoggingHandler(), ProgressBar()])
    return estimator


def twins(make: Callable[[], Any], *example: np.ndarray) -> tuple[Any, Any]:
    """Make two initialised nets with the same parameters; `example` is what the nets are called with."""
    nets = make(), make()
    for net in nets:
        net.initialize(mx.init.Xavier())
        net(*[mx.nd.array(array[:2], dtype=array.dtype) for array in example])
    values = nets[0]._collect_params_with_prefix()
    for name, parameter in nets[1]._collect_params_with_prefix().items():
        parameter.set_data(values[name].data())
    return nets


def assert_same_parameters(net: Any, other: Any, rtol: float = RTOL, atol: float = ATOL) -> None:
    """Both nets have the same parameters, on every device."""
    mine, others = net._collect_params_with_prefix(), other._collect_params_with_prefix()
    assert mine.keys() == others.keys()
    for name, parameter in mine.items():
        expected = others[name].list_data()[0].asnumpy()
        for data in parameter.list_data():
            np.testing.assert_allclose(data.asnumpy(), expected, rtol=rtol, atol=atol, err_msg=name)


def digits_batches(sizes: Iterable[int], width: int = 10, seed: int = 3) -> list[tuple]:
    """Random batches (x, digit, parity) of the given sizes."""
    rng = np.random.RandomState(seed)
    found = []
    for size in sizes:
        digit = rng.randint(0, 5, size).astype("float32")
        found.append((rng.randn(size, width).astype("float32"), digit, digit % 2))
    return found


@pytest.fixture
def two_heads() -> type:
    return TwoHeads


@pytest.fixture
def by_hand() -> Callable[..., None]:
    return loop_by_hand


@pytest.fixture
def train() -> Callable[..., MultiEstimator]:
    return run_estimator


@pytest.fixture
def pair() -> Callable[..., tuple[Any, Any]]:
    return twins


@pytest.fixture
def same() -> Callable[..., None]:
    return assert_same_parameters


@pytest.fixture
def data() -> Callable[..., list[tuple]]:
    return digits_batches


@pytest.fixture(params=[ONE, TWO], ids=["one device", "two devices"])
def devices(request: pytest.FixtureRequest) -> list:
    return request.param


@pytest.fixture(params=[False, True], ids=["plain", "hybridized"])
def hybridized(request: pytest.FixtureRequest) -> bool:
    return request.param


@pytest.fixture
def silent() -> list:
    return [LoggingHandler(), ProgressBar()]
