"""A small classifier on one device or two, and fits of it."""

from __future__ import annotations

import logging
from typing import Any, Callable

import numpy as np
import pytest

from multifit import LossSpec, MultiEstimator, TaskSpec, TrainerSpec

import mxnet as mx  # isort: skip
from mxnet import gluon
from mxnet.gluon import nn

DEVICES = {1: [mx.cpu(0)], 2: [mx.cpu(0), mx.cpu(1)]}


@pytest.fixture
def data() -> list[tuple[Any, Any]]:
    """Return four batches of 6 samples with 4 features, of 3 classes."""
    random = np.random.RandomState(2)
    return [
        (mx.nd.array(random.randn(6, 4)), mx.nd.array(random.randint(0, 3, 6).astype("float32")))
        for _ in range(4)
    ]


@pytest.fixture
def make_net() -> Callable[..., Any]:
    """Return ``make_net(devices=1, hybrid=True, norm=False)``: the same parameters each time."""

    def make(devices: int = 1, hybrid: bool = True, norm: bool = False) -> Any:
        mx.random.seed(3)
        net = nn.HybridSequential()
        net.add(nn.Dense(5, in_units=4, activation="tanh"))
        if norm:
            net.add(nn.BatchNorm(in_channels=5))
        net.add(nn.Dense(3, in_units=5))
        net.initialize(mx.init.Xavier(), ctx=DEVICES[devices])
        if hybrid:
            net.hybridize()
        return net

    return make


@pytest.fixture
def spec() -> TaskSpec:
    """Return what is routed where: one output, one label, softmax cross entropy."""
    return TaskSpec(["y"], ["label"], {"ce": LossSpec(gluon.loss.SoftmaxCELoss(), "y", "label")})


@pytest.fixture
def fit(make_net: Any, data: Any, spec: Any) -> Callable[..., MultiEstimator]:
    """Return ``fit(handlers)``: the estimator after two epochs; keywords change what is usual."""

    def run(handlers: Any = None, **more: Any) -> MultiEstimator:
        shape = {name: more.pop(name) for name in ("devices", "hybrid", "norm") if name in more}
        net = more.pop("net", None) or make_net(**shape)
        own = more.pop("spec", spec)
        trainers = more.pop("trainers", TrainerSpec(".*", "sgd", {"learning_rate": 0.1}))
        estimator = MultiEstimator(net, own, trainers=trainers, context=DEVICES[shape.get("devices", 1)])
        estimator.fit(more.pop("data", data), event_handlers=handlers, **{"epochs": 2, **more})
        return estimator

    return run


@pytest.fixture
def values() -> Callable[..., list[np.ndarray]]:
    """Return ``values(net or estimator)``: all parameters of the first device, in order."""

    def read(owner: Any) -> list[np.ndarray]:
        net = getattr(owner, "net", owner)
        return [p.list_data()[0].asnumpy() for p in net.collect_params().values()]

    return read


@pytest.fixture
def assert_close(values: Any) -> Callable[..., None]:
    """Return ``assert_close(a, b)``: the parameters of two nets are equal to float tolerance."""

    def check(a: Any, b: Any) -> None:
        for one, other in zip(values(a), values(b)):
            np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)

    return check


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Any:
    """Return ``log()``: the warnings of multifit so far."""
    with caplog.at_level(logging.WARNING, logger="multifit"):
        yield lambda: [record.getMessage() for record in caplog.records if record.name == "multifit"]
