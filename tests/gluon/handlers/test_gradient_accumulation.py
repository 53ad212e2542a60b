"""GradientAccumulation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from multifit import LossSpec, MultiEstimator, TrainerError, TrainerSpec
from multifit.gluon.handlers import GradientAccumulation
from tests.common.data import in_batches
from tests.common.grids import ONE, TWO
from tests.common.nets import mlp, sequential
from tests.common.specs import L2

import mxnet as mx  # isort: skip
from mxnet import gluon
from mxnet.gluon import nn

from . import training
from .training import On, assert_close, assert_equal, values

RANDOM = np.random.RandomState(2)
ARRAYS = RANDOM.randn(24, 4).astype("float32"), RANDOM.randn(24, 2).astype("float32")
LOSSES = {"l2": LossSpec(L2, "y", "label")}
TRAINERS = {
    "body": TrainerSpec("0.*", "adam", {"learning_rate": 0.05}),
    "head": TrainerSpec("1.*", "sgd", {"learning_rate": 0.1, "momentum": 0.9}, clip_norm=0.3),
}


def fit(handlers: Any, size: int, devices: Any = ONE, **options: Any) -> MultiEstimator:
    options = {"net": mlp(2, devices), "losses": LOSSES, "trainers": TRAINERS, **options}
    return training.fit(handlers, devices, data=in_batches(ARRAYS, size), **options)


@pytest.mark.parametrize(
    ("devices", "hybrid", "deferred"),
    [(ONE, False, False), (ONE, True, True), (TWO, True, False), (TWO, False, True)],
)
def test_equals_larger_batches(devices: Any, hybrid: bool, deferred: bool) -> None:
    def run(handlers: Any, size: int) -> Any:
        net = mlp(2, devices, hybrid)
        if deferred:
            mx.random.seed(1)
            net = sequential(nn.Dense(5, activation="tanh"), nn.Dense(2, in_units=5))
            net.initialize(mx.init.Xavier(), ctx=devices)
            net.hybridize(hybrid)
        return fit(handlers, size, devices, net=net)

    assert_close(run(GradientAccumulation(3), 4), run(None, 12), 1e-4, 1e-5)


def test_on_a_kvstore_that_updates() -> None:
    def run(handlers: Any, size: int) -> Any:
        net = mlp(2, TWO)
        trainer = gluon.Trainer(net.collect_params(), "adam", update_on_kvstore=True)
        return fit(handlers, size, TWO, net=net, trainers=trainer)

    assert_close(run(GradientAccumulation(3), 4), run(None, 12), 1e-4, 1e-5)


def test_accumulating_one_batch_changes_nothing() -> None:
    assert_equal(fit(GradientAccumulation(1), 8), fit(None, 8))


def test_batches_left_over_by_an_epoch_count_in_the_next() -> None:
    """Three batches in an epoch and two per update: the second update is of two epochs' batches."""
    after: list[Any] = []

    def keep(estimator: Any) -> None:
        after.append(values(estimator))

    fit([GradientAccumulation(2), On(train_begin=keep, batch_end=keep)], 8, epochs=3)
    moved = [any((a != b).any() for a, b in zip(*pair)) for pair in zip(after, after[1:])]
    assert moved == [False, True] * 4 + [False]


def test_the_whole_objective_is_scaled_in_any_order_of_handlers() -> None:
    def penalty(estimator: Any, objectives: Any, pred: Any) -> Any:
        return [*objectives, *((y**2).mean().reshape((1,)) for y in pred["y"])]

    handler = On(priority=5.0, change_objective=penalty)
    assert_close(fit([GradientAccumulation(3), handler], 4), fit(handler, 12), 1e-4, 1e-5)


def test_gradient_requests_are_restored() -> None:
    net = mlp(2)
    net[0].bias.grad_req = "null"
    net[1].bias.grad_req = "add"
    net.add(nn.BatchNorm(in_channels=2))
    net[2].initialize()
    before = {name: p.grad_req for name, p in net.collect_params().items()}
    frozen = net[0].bias.data().asnumpy()
    requests: dict[str, str] = {}

    def batch_end(estimator: Any) -> None:
        requests.update({name: p.grad_req for name, p in estimator.parameters.items()})

    trainers = {"all": TrainerSpec("[012].*", "sgd", {"learning_rate": 0.1})}
    fit([GradientAccumulation(2), On(batch_end=batch_end)], 8, net=net, trainers=trainers)
    assert requests == {n: "null" if n == "0.bias" or "running" in n else "add" for n in requests}
    assert {name: p.grad_req for name, p in net.collect_params().items()} == before
    np.testing.assert_array_equal(net[0].bias.data().asnumpy(), frozen)


def divided(state: dict[str, Any], n: int) -> dict[str, Any]:
    """Return a state as older checkpoints have it: gradients were divided batch by batch."""
    gradients = {name: [each / n for each in arrays] for name, arrays in state["gradients"].items()}
    return {"count": state["count"], "gradients": gradients}


@pytest.mark.parametrize("devices", [ONE, TWO], ids=str)
@pytest.mark.parametrize("old", [False, True], ids=["", "older"])
def test_pending_gradients_are_saved_in_checkpoints(devices: Any, old: bool) -> None:
    """After two batches of three, the state is loaded into another handler, which makes the third."""
    batches = [(mx.nd.array(words), mx.nd.ones((len(words), 2))) for words in ([0, 1], [1, 2], [3, 3])]

    def run(data: Any, *handlers: Any) -> Any:
        mx.random.seed(3)
        net = nn.Sequential()
        net.add(nn.Embedding(6, 2))
        net.register_child(nn.Dense(2, in_units=2), "spare")  # which no batch reaches: it is not in the state
        net.forward = net[0]
        net.initialize(mx.init.Normal(1))
        trainer = TrainerSpec(".*", "sgd", {"learning_rate": 1.0})
        return training.fit(handlers, devices, net=net, losses=LOSSES, trainers=trainer, data=data, epochs=1)

    first, second = GradientAccumulation(3), GradientAccumulation(3)
    states: list[Any] = []
    whole = run(batches, first, On(batch_end=lambda estimator: states.append(first.state_dict())))
    assert states[1]["count"] == 2 and set(states[1]["gradients"]) == {"0.weight"}
    state = divided(states[1], 3) if old else states[1]
    resumed = run(batches[2:], second, On(batch_begin=lambda estimator: second.load_state_dict(state)))
    if old:
        assert_close(resumed, whole, 1e-6, 1e-6)
    else:
        assert_equal(resumed, whole)
    assert first.state_dict() == {"count": 0, "gradients": {}, "whole": True}


def test_sparse_gradients_are_an_error() -> None:
    net = nn.Sequential()
    net.add(nn.Embedding(6, 2, sparse_grad=True), nn.Dense(2))
    message = 'the gradient of "0.weight" is sparse, and MXNet cannot add such gradients'
    with pytest.raises(TrainerError, match=message):
        fit(GradientAccumulation(2), 8, net=net)
    assert net[1].weight.grad_req == "write"
