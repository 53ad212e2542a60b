"""MXNet's cond and while_loop, whose gradients are wrong in hybridized blocks."""

from typing import Any

import numpy as np
import pytest

from multifit import LossSpec, MultiEstimator, SpecError, TaskSpec, TrainerSpec
from tests.common.compare import assert_same_parameters, twins
from tests.common.hand_loop import SILENT, train_by_hand, trainer_of
from tests.common.specs import L2

import mxnet as mx  # isort: skip
from mxnet import gluon  # isort: skip
from mxnet.gluon import nn  # isort: skip

RANDOM = np.random.RandomState(0)
BATCHES = [
    ((RANDOM.randn(5, 4) + sign).astype("float32"), RANDOM.randn(5, 4).astype("float32"))
    for sign in (1, -1, 1, 1, -1, -1)
]
MESSAGE = "the gradients of F.contrib.{} are wrong in a hybridized block, in MXNet; use F.where, or"


def branch(F: Any, x: Any, weight: Any) -> Any:
    return F.contrib.cond(F.sum(x) > 0, lambda: F.tanh(F.dot(x, weight)), lambda: x * 2)


def loop(F: Any, x: Any, weight: Any) -> Any:
    def step(count: Any, state: Any) -> Any:
        return [], [count + 1, F.tanh(F.dot(state, weight))]

    return F.contrib.while_loop(lambda count, _: count < 3, step, [F.zeros((1,)), x], max_iterations=5)[1][1]


class Flow(gluon.HybridBlock):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.weight = self.params.get("weight", shape=(4, 4), init=mx.init.Xavier())
        self._function = function

    def hybrid_forward(self, F: Any, x: Any, weight: Any) -> Any:
        return self._function(F, x, weight)


def net_around(function: Any) -> Any:
    net = nn.HybridSequential()
    net.add(nn.Dense(4, in_units=4), Flow(function), nn.Dense(4, in_units=4))
    return net


def estimator_of(net: Any, loss: Any = L2) -> MultiEstimator:
    spec = TaskSpec(outputs="y", labels="t", losses={"l": LossSpec(loss, "y", "t")}, inputs=["x"])
    return MultiEstimator(net, spec, TrainerSpec(".*", "sgd", {"learning_rate": 0.05}))


@pytest.mark.parametrize(("name", "function"), [("cond", branch), ("while_loop", loop)])
def test_they_train_unless_they_are_hybridized(name: str, function: Any) -> None:
    """And evaluate in any case."""
    net, other = twins(lambda: net_around(function), BATCHES[0][0])
    estimator_of(net).fit(BATCHES, epochs=2, event_handlers=SILENT)
    trainer = trainer_of(other, options={"learning_rate": 0.05})
    for _ in range(2):
        train_by_hand(other, trainer, BATCHES, lambda net, x, t: L2(net(x), t))
    assert_same_parameters(net, other, rtol=1e-5, atol=1e-6)
    for part in (net[1], net):
        part.hybridize()
        with pytest.raises(SpecError) as raised:
            estimator_of(net).fit(BATCHES, epochs=1)
        assert MESSAGE.format(name) in str(raised.value)
        assert estimator_of(net).evaluate(BATCHES, []) == pytest.approx(
            estimator_of(other).evaluate(BATCHES, []), rel=1e-5
        )


def test_in_a_loss() -> None:
    class Branching(gluon.loss.Loss):
        def hybrid_forward(self, F: Any, y: Any, t: Any) -> Any:
            return F.contrib.cond(F.sum(t) > 0, lambda: F.square(y - t), lambda: F.abs(y - t))

    net, loss = nn.Dense(4, in_units=4), Branching(None, 0)
    net.initialize()
    loss.hybridize()
    with pytest.raises(SpecError) as raised:
        estimator_of(net, loss).fit(BATCHES, epochs=1)
    assert MESSAGE.format("cond") in str(raised.value)


def test_what_needs_no_gradient_trains() -> None:
    """Here, inputs are flipped, and a number is computed from what a BlockGrad returns."""
    net, other = twins(lambda: nn.Dense(4, in_units=4), BATCHES[0][0])

    class Flips(gluon.HybridBlock):
        def __init__(self, net: Any, flow: Any) -> None:
            super().__init__()
            self.net, self._flow = net, flow

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            y = self.net(self._flow(F, F.sum(x) > 0, lambda: F.flip(x, axis=1), lambda: x))
            fixed = F.BlockGrad(y)
            return y + F.tanh(self._flow(F, F.sum(fixed) > 0, lambda: fixed * 1, lambda: -fixed))

    net, other = Flips(net, lambda F, *each: F.contrib.cond(*each)), Flips(other, by_where)
    net.hybridize()
    for each in (net, other):
        estimator_of(each).fit(BATCHES, epochs=2, event_handlers=SILENT)
    assert_same_parameters(net, other, rtol=1e-5, atol=1e-6)


def by_where(F: Any, condition: Any, one: Any, other: Any) -> Any:
    return F.where(F.broadcast_like(F.reshape(condition, (1, 1)), one()), one(), other())
