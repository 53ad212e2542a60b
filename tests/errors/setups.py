"""A small task that trains, faulty variants of it, and the check that a rejected fit has moved nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from multifit import LossSpec, MetricSpec

import mxnet as mx  # isort: skip
from mxnet import gluon

from ..common import faulty
from ..common.faulty import BOTH, Faulty, fault

__all__ = ["BOTH", "CE", "L2", "Setup", "around", "arrays", "fault", "later", "new_setup", "on", "stops"]

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
    return [each.astype("float32") for each in faulty.arrays(samples)]


class Setup(Faulty):
    """A setup around a block."""

    def parameters(self) -> dict[str, np.ndarray]:
        """All initialised parameters by name, on the first device; running statistics are among them."""
        return {
            name: parameter.list_data()[0].asnumpy()
            for name, parameter in self.net._collect_params_with_prefix().items()
            if parameter._data is not None
        }


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
    return Setup(net, spec, data=[arrays()])


def around(function: Callable[..., Any], **fields: Any) -> Any:
    """Return a setup of one softmax loss around a net that is ``function(dense, *inputs)``."""
    spec = {"inputs": ["x"], "outputs": ["digit"], "labels": ["digit"], "losses": {"digit": CE()}}
    net = Calls(function)
    net.initialize()
    return Setup(net, spec, data=[arrays()[:2]]).but(**fields)


def on(devices: int, hybridized: bool = True) -> Setup:
    """Return a new setup on several devices."""
    setup = new_setup()
    setup.net.collect_params().reset_ctx([mx.cpu(i) for i in range(devices)])
    setup.net.hybridize(hybridized)
    return setup


def later(data: Any, slot: int, values: dict[int, list[float]], batches: int = 8) -> Any:
    """Return copies of a batch, with values at the end of a slot in some of them, by number."""
    copies = [[array.copy() for array in data[0]] for _ in range(batches)]
    for number, wrong in values.items():
        copies[number - 1][slot].flat[-len(wrong) :] = wrong
    return copies


def stops(run: Callable[[], Any], error: type[Exception], text: str) -> None:
    """Check that a run stops with an error whose message has a text."""
    with pytest.raises(error) as raised:
        run()
    assert text in str(raised.value)
