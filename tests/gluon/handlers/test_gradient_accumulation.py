"""GradientAccumulation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from multifit import LossSpec, MultiEstimator, TaskSpec, TrainerError, TrainerSpec
from multifit.gluon.handlers import GradientAccumulation

import mxnet as mx  # isort: skip
from mxnet import gluon
from mxnet.gluon import nn

from . import training
from .training import DEVICES, values

RANDOM = np.random.RandomState(2)
X, Y = RANDOM.randn(24, 4).astype("float32"), RANDOM.randn(24, 2).astype("float32")


def batches(size: int) -> list[Any]:
    return [(mx.nd.array(X[i : i + size]), mx.nd.array(Y[i : i + size])) for i in range(0, 24, size)]


def make_net(hybrid: bool = True, deferred: bool = False) -> Any:
    mx.random.seed(3)
    np.random.seed(3)
    net = nn.HybridSequential()
    net.add(nn.Dense(5, in_units=0 if deferred else 4, activation="tanh"), nn.Dense(2, in_units=5))
    if not deferred:
        net.initialize(mx.init.Xavier())
    if hybrid:
        net.hybridize(static_alloc=True)
    return net


def fit(handlers: Any, size: int, devices: int = 1, net: Any = None, **more: Any) -> MultiEstimator:
    spec = TaskSpec(["y"], ["truth"], {"l2": LossSpec(gluon.loss.L2Loss(), "y", "truth")})
    net = make_net() if net is None else net
    trainers = more.pop("trainers", two_trainers())
    estimator = MultiEstimator(net, spec, trainers, DEVICES[devices], more.pop("initializer", None))
    estimator.fit(batches(size), event_handlers=handlers, **{"epochs": 2, **more})
    return estimator


def two_trainers() -> dict[str, TrainerSpec]:
    return {
        "body": TrainerSpec("0.*", "adam", {"learning_rate": 0.05}),
        "head": TrainerSpec("1.*", "sgd", {"learning_rate": 0.1, "momentum": 0.9}, clip_norm=0.3),
    }


def assert_close(one: Any, other: Any, rtol: float = 1e-4, atol: float = 1e-5) -> None:
    training.assert_close(one, other, rtol, atol)


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("hybrid", [True, False])
@pytest.mark.parametrize("deferred", [True, False])
def test_equals_larger_batches(devices: int, hybrid: bool, deferred: bool) -> None:
    made = [make_net(hybrid, deferred) for _ in range(2)]
    mx.random.seed(1)
    large = fit(None, 12, devices, made[0], initializer="xavier")
    mx.random.seed(1)
    small = fit(GradientAccumulation(3), 4, devices, made[1], initializer="xavier")
    assert_close(small, large)


def test_on_a_kvstore_that_updates() -> None:
    def run(handlers: Any, size: int) -> Any:
        net = make_net()
        net.collect_params().reset_ctx(DEVICES[2])
        trainer = gluon.Trainer(net.collect_params(), "adam", update_on_kvstore=True)
        return fit(handlers, size, 2, net, trainers=trainer)

    assert_close(run(GradientAccumulation(3), 4), run(None, 12))


def test_accumulating_one_batch_changes_nothing() -> None:
    assert_close(fit(GradientAccumulation(1), 4), fit(None, 4), rtol=0, atol=0)


def test_batches_left_over_by_an_epoch_count_in_the_next() -> None:
    """Three batches in an epoch and two per update: the second update is of two epochs' batches."""
    moved = []

    class Look:
        def train_begin(self, estimator: Any) -> None:
            self.last = values(estimator)

        def batch_end(self, estimator: Any) -> None:
            now = values(estimator)
            moved.append(any((a != b).any() for a, b in zip(self.last, now)))
            self.last = now

    fit([GradientAccumulation(2), Look()], 8, epochs=3)
    assert moved == [False, True] * 4 + [False]


def test_the_whole_objective_is_scaled_in_any_order_of_handlers() -> None:
    class Penalty:
        priority = 5.0

        def change_objective(self, estimator: Any, objectives: Any, pred: Any, label: Any, loss: Any) -> Any:
            return [*objectives, *((y**2).mean().reshape((1,)) for y in pred["y"])]

    large, small = fit(Penalty(), 12), fit([GradientAccumulation(3), Penalty()], 4)
    assert_close(small, large)


def test_gradient_requests_are_restored() -> None:
    net = make_net()
    net[0].bias.grad_req = "null"
    net[1].bias.grad_req = "add"
    net.add(nn.BatchNorm(in_channels=2))
    net[2].initialize()
    before = {name: p.grad_req for name, p in net.collect_params().items()}
    frozen = net[0].bias.data().asnumpy()
    trainers = {"all": TrainerSpec("[012].*", "sgd", {"learning_rate": 0.1})}
    seen: dict[str, str] = {}

    class Look:
        def batch_end(self, estimator: Any) -> None:
            seen.update({name: p.grad_req for name, p in estimator.parameters.items()})

    fit([GradientAccumulation(2), Look()], 8, net=net, trainers=trainers)
    assert seen == {n: "null" if n == "0.bias" or "running" in n else "add" for n in seen}
    assert {name: p.grad_req for name, p in net.collect_params().items()} == before
    np.testing.assert_array_equal(net[0].bias.data().asnumpy(), frozen)


def test_training_without_it_afterwards_is_unchanged() -> None:
    net, twin = make_net(), make_net()
    accumulated, plain = fit(GradientAccumulation(3), 4, net=net), fit(None, 12, net=twin)
    accumulated.fit(batches(8), epochs=1)
    plain.fit(batches(8), epochs=1)
    assert_close(accumulated, plain)


@pytest.mark.parametrize("devices", [1, 2])
def test_pending_gradients_are_saved_in_checkpoints(devices: int) -> None:
    """Two batches of three, then a handler without them: its state, loaded, brings them back."""

    def words(rows: list[Any]) -> list[Any]:
        return [(mx.nd.array(row), mx.nd.ones((len(row), 2))) for row in rows]

    def run(data: Any, handlers: Any) -> Any:
        mx.random.seed(3)
        net = nn.Sequential()
        net.add(nn.Embedding(6, 2))
        net.register_child(nn.Dense(2, in_units=2), "spare")  # what no batch reaches is not kept
        net.forward = net[0]
        net.initialize(mx.init.Normal(1))
        spec = TaskSpec(["y"], ["truth"], {"l2": LossSpec(gluon.loss.L2Loss(), "y", "truth")})
        trainer = TrainerSpec(".*", "sgd", {"learning_rate": 1.0})
        estimator = MultiEstimator(net, spec, trainer, DEVICES[devices])
        estimator.fit(data, epochs=1, event_handlers=handlers)
        return estimator

    class Keep:
        """Keeps the state after the second batch."""

        def batch_end(self, estimator: Any) -> None:
            if estimator.state.step == 2:
                self.state = handler.state_dict()

    class Load:
        def batch_begin(self, estimator: Any) -> None:
            other.load_state_dict(keep.state)

    handler, other, keep = GradientAccumulation(3), GradientAccumulation(3), Keep()
    rows = [[0, 1], [1, 2], [3, 3]]
    whole = run(words(rows), [handler, keep])
    assert keep.state["count"] == 2 and set(keep.state["gradients"]) == {"0.weight"}
    resumed = run(words(rows[2:]), [other, Load()])
    assert_close(resumed, whole, rtol=0, atol=0)
    assert handler.state_dict() == {"count": 0, "gradients": {}}


def test_sparse_gradients_are_an_error() -> None:
    net = nn.Sequential()
    net.add(nn.Embedding(6, 2, sparse_grad=True), nn.Dense(2))
    with pytest.raises(
        TrainerError, match='the gradient of "0.weight" is sparse, and MXNet cannot add such gradients'
    ):
        fit(GradientAccumulation(2), 8, net=net)
    assert net[1].weight.grad_req == "write"


def test_an_invalid_number_is_an_error() -> None:
    with pytest.raises(
        ValueError, match="GradientAccumulation: n is 0; valid is a whole number of at least 1"
    ):
        GradientAccumulation(0)
