"""Hooks in a real run: handlers that change batch, outputs, objective, gradients or update."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Iterator

import numpy as np
import pytest

from multifit import (
    HandlerError,
    LossSpec,
    MetricSpec,
    MultiEstimator,
    TaskSpec,
    TrainerError,
    TrainerSpec,
)

import mxnet as mx  # isort: skip
from mxnet import autograd, gluon
from mxnet.gluon import nn

RNG = np.random.RandomState(2)
DATA = [(mx.nd.array(RNG.randn(6, 4)), mx.nd.array(RNG.randn(6, 2))) for _ in range(4)]
ONE, TWO = [mx.cpu(0)], [mx.cpu(0), mx.cpu(1)]


def make_net(contexts: list[Any], hybrid: bool = True) -> Any:
    mx.random.seed(3)
    net = nn.HybridSequential()
    net.add(nn.Dense(5, in_units=4, activation="tanh"), nn.Dense(2, in_units=5))
    net.initialize(mx.init.Xavier(), ctx=contexts)
    if hybrid:
        net.hybridize()
    return net


def fit(handlers: Any, contexts: list[Any] = ONE, hybrid: bool = True, **more: Any) -> Any:
    net = make_net(contexts, hybrid)
    spec = TaskSpec(
        outputs=["y"],
        labels=["truth"],
        losses={"l2": LossSpec(gluon.loss.L2Loss(), "y", "truth")},
        metrics={"mse": MetricSpec(mx.metric.MSE(), "y", "truth")},
    )
    trainers = more.pop("trainers", TrainerSpec(".*", "sgd", {"learning_rate": 0.1}))
    estimator = MultiEstimator(net, spec, trainers=trainers, context=contexts)
    estimator.fit(DATA, epochs=2, event_handlers=handlers, **more)
    return estimator


def by_hand(change: Any = None, extra: Any = None, scale: float = 1.0, steps: Any = lambda step: True) -> Any:
    """Train by hand, with batches changed by `change`, and `extra` added to the objective."""
    net, loss_fn = make_net(ONE), gluon.loss.L2Loss()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    for step, (x, y) in enumerate(DATA * 2):
        x, y = change(x, y) if change else (x, y)
        with autograd.record():
            out = net(x)
            loss = loss_fn(out, y)
            loss = loss if extra is None else loss + extra(out)
        loss.backward()
        if steps(step):
            for parameter in net.collect_params().values():
                parameter.grad()[:] *= scale
            trainer.step(6)
    return net


def assert_equal(estimator: Any, net: Any) -> None:
    ours, theirs = estimator.net.collect_params().values(), net.collect_params().values()
    for a, b in zip(ours, theirs):
        np.testing.assert_allclose(a.list_data()[0].asnumpy(), b.data().asnumpy(), rtol=2e-4, atol=2e-5)


class Batch:
    def change_batch(self, estimator: Any, slots: Any) -> Any:
        return {"data": slots["data"] * 2, "truth": slots["truth"] + 1}


class Outputs:
    def change_outputs(self, estimator: Any, outputs: Any, slots: Any) -> Any:
        return {"y": outputs["y"] * 3}


class Objective:
    def change_objective(self, estimator: Any, objectives: Any, pred: Any, label: Any, loss: Any) -> Any:
        penalties = [0.5 * (y**2).sum().reshape((1,)) / 6 for y in pred["y"]]
        return [*objectives, *penalties]


class Gradients:
    def change_gradients(self, estimator: Any) -> None:
        for trainer in estimator.gradients().values():
            for arrays in trainer.values():
                for array in arrays:
                    array *= 0.5


class Hold:
    """Updates at every second batch only."""

    def hold_update(self, estimator: Any, loss: Any) -> bool:
        assert set(loss) == {"l2"}
        return estimator.state.step % 2 == 0


@pytest.mark.parametrize("contexts", [ONE, TWO])
@pytest.mark.parametrize("hybrid", [True, False])
class TestEqualToTheLoop:
    def test_the_batch(self, contexts: Any, hybrid: bool) -> None:
        assert_equal(fit(Batch(), contexts, hybrid), by_hand(lambda x, y: (x * 2, y + 1)))

    def test_the_outputs(self, contexts: Any, hybrid: bool) -> None:
        net, loss_fn = make_net(ONE), gluon.loss.L2Loss()
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        for x, y in DATA * 2:
            with autograd.record():
                loss = loss_fn(net(x) * 3, y)
            loss.backward()
            trainer.step(6)
        assert_equal(fit(Outputs(), contexts, hybrid), net)

    def test_the_objective(self, contexts: Any, hybrid: bool) -> None:
        expected = by_hand(extra=lambda out: 0.5 * (out**2).sum(axis=1))
        assert_equal(fit(Objective(), contexts, hybrid), expected)

    def test_the_gradients(self, contexts: Any, hybrid: bool) -> None:
        assert_equal(fit(Gradients(), contexts, hybrid), by_hand(scale=0.5))

    def test_the_update(self, contexts: Any, hybrid: bool) -> None:
        assert_equal(fit(Hold(), contexts, hybrid), by_hand(steps=lambda step: step % 2 == 1))

    def test_all_of_them(self, contexts: Any, hybrid: bool) -> None:
        handlers = [Hold(), Gradients(), Objective(), Batch()]
        expected = by_hand(
            lambda x, y: (x * 2, y + 1), lambda out: 0.5 * (out**2).sum(axis=1), 0.5, lambda s: s % 2 == 1
        )
        assert_equal(fit(handlers, contexts, hybrid), expected)


def test_each_handler_sees_what_the_one_before_returned() -> None:
    seen = []

    class First:
        priority = -1.0

        def change_batch(self, estimator: Any, slots: Any) -> Any:
            return {"data": slots["data"] * 0 + 7}

    class Second:
        def change_batch(self, estimator: Any, slots: Any) -> None:
            seen.append(float(slots["data"].mean().asscalar()))

    fit([Second(), First()])
    assert seen == [7.0] * 8


def test_context_managers_are_exited_in_reverse_also_after_an_error() -> None:
    calls: list[str] = []

    class Wrap:
        def __init__(self, name: str, priority: float) -> None:
            self.name, self.priority = name, priority

        @contextmanager
        def around_step(self, estimator: Any) -> Iterator[None]:
            calls.append(f"{self.name} in")
            try:
                yield
            finally:
                calls.append(f"{self.name} out")

    class Fails:
        def change_gradients(self, estimator: Any) -> None:
            raise RuntimeError("no")

    fit([Wrap("b", 2.0), Wrap("a", 1.0)])
    assert calls == ["a in", "b in", "b out", "a out"] * 8
    calls.clear()
    with pytest.raises(HandlerError, match="Fails failed in change_gradients .epoch 1, batch 1.: RuntimeErr"):
        fit([Wrap("b", 2.0), Wrap("a", 1.0), Fails()])
    assert calls == ["a in", "b in", "b out", "a out"]


def test_hooks_do_not_change_evaluations_but_can_wrap_them() -> None:
    calls = []

    class Wrap(Batch, Outputs):
        @contextmanager
        def around_evaluation(self, estimator: Any) -> Iterator[None]:
            calls.append(estimator.state.epoch)
            yield

    estimator = fit(Wrap(), val_data=DATA)
    assert calls == [0, 1]
    assert estimator.history["val_mse"][-1] == pytest.approx(estimator.evaluate(DATA)["mse"])


def test_training_figures_are_computed_after_the_hooks() -> None:
    class Zero:
        def change_outputs(self, estimator: Any, outputs: Any, slots: Any) -> Any:
            return {"y": outputs["y"] * 0}

        def change_batch(self, estimator: Any, slots: Any) -> Any:
            return {"truth": slots["truth"] * 0 + 2}

    history = fit(Zero()).history
    assert history["train_mse"] == pytest.approx([4.0, 4.0])
    assert history["train_l2"] == pytest.approx([2.0, 2.0])


def test_changing_gradients_on_a_kvstore_is_an_error() -> None:
    net = make_net(TWO)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, update_on_kvstore=True)
    spec = TaskSpec(["y"], ["truth"], {"l2": LossSpec(gluon.loss.L2Loss(), "y", "truth")})
    before = [p.data(mx.cpu(0)).asnumpy() for p in net.collect_params().values()]
    with pytest.raises(TrainerError, match="update on the kvstore.*update_on_kvstore=False"):
        MultiEstimator(net, spec, trainers=trainer, context=TWO).fit(
            DATA, epochs=1, event_handlers=Gradients()
        )
    for a, p in zip(before, net.collect_params().values()):
        np.testing.assert_array_equal(a, p.data(mx.cpu(0)).asnumpy())
