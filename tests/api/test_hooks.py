"""Hooks in a real run: handlers that change batch, outputs, objective, gradients or update."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from multifit import HandlerError, LossSpec, MetricSpec, MultiEstimator, TaskSpec, TrainerSpec
from multifit.sampling import RoundRobin
from tests.common.compare import assert_same_parameters, assert_unchanged, snapshot
from tests.common.data import digit_batches
from tests.common.grids import ONE, TWO, pairwise
from tests.common.hand_loop import trainer_of
from tests.common.handlers import handler
from tests.common.nets import mlp
from tests.common.shared_nets import two_heads
from tests.common.specs import L2, digit_spec

import mxnet as mx  # isort: skip
from mxnet import autograd

RNG = np.random.RandomState(2)
DATA = [(mx.nd.array(RNG.randn(6, 4)), mx.nd.array(RNG.randn(6, 2))) for _ in range(4)]
SGD = {"learning_rate": 0.1}


def fit(handlers: Any, contexts: list[Any] = ONE, hybrid: bool = True, **more: Any) -> Any:
    net = mlp(2, contexts, hybrid)
    metrics = {"mse": MetricSpec(mx.metric.MSE(), "y", "truth")}
    spec = TaskSpec(
        outputs=["y"], labels=["truth"], losses={"l2": LossSpec(L2, "y", "truth")}, metrics=metrics
    )
    estimator = MultiEstimator(net, spec, TrainerSpec(".*", "sgd", SGD), contexts)
    estimator.fit(DATA, epochs=2, event_handlers=handlers, **more)
    return estimator


def unchanged(*arrays: Any) -> Any:
    return arrays if len(arrays) > 1 else arrays[0]


def by_hand(
    batch: Any = unchanged, outputs: Any = unchanged, penalty: Any = None, scale: float = 1.0, every: int = 1
) -> Any:
    """Train by hand: change batches and outputs, add a penalty, scale gradients, update every few steps."""
    net = mlp(2)
    trainer = trainer_of(net, options=SGD)
    for step, (x, y) in enumerate(DATA * 2):
        x, y = batch(x, y)
        with autograd.record():
            out = outputs(net(x))
            loss = L2(out, y) if penalty is None else L2(out, y) + penalty(out)
        loss.backward()
        if step % every == every - 1:
            for parameter in net.collect_params().values():
                parameter.grad()[:] *= scale
            trainer.step(6)
    return net


@pytest.mark.parametrize("hybrid", [True, False])
def test_gradients_are_there_until_the_update_uses_them_up(hybrid: bool) -> None:
    seen: dict[str, Any] = {"hold_update": [], "change_gradients": [], "batch_end": [], "epoch_end": []}
    looks = {
        event: lambda self, estimator, found=found: found.append(list(estimator.gradients()["trainer"]))
        for event, found in seen.items()
    }
    names = list(fit(type("Looks", (), looks)(), hybrid=hybrid).parameters)
    assert seen["hold_update"] == seen["change_gradients"] == [names] * 8
    assert (seen["batch_end"], seen["epoch_end"]) == ([[]] * 8, [[]] * 2)


def penalised(estimator: Any, objectives: Any, pred: Any, label: Any, loss: Any) -> Any:
    return [*objectives, *(0.5 * (y**2).sum().reshape((1,)) / 6 for y in pred["y"])]


def halve(estimator: Any) -> None:
    for arrays in estimator.gradients()["trainer"].values():
        for array in arrays:
            array *= 0.5


def odd(estimator: Any, loss: Any) -> bool:
    assert set(loss) == {"l2"}
    return estimator.state.step % 2 == 0


BATCH = handler(
    change_batch=lambda estimator, slots: {"data": slots["data"] * 2, "truth": slots["truth"] + 1}
)
OUTPUTS = handler(change_outputs=lambda estimator, outputs, slots: {"y": outputs["y"] * 3})
OBJECTIVE, GRADIENTS = handler(change_objective=penalised), handler(change_gradients=halve)
HOLD = handler(hold_update=odd)
# what the hooks do, and what the loop by hand does
DOUBLED, PENALTY = {"batch": lambda x, y: (x * 2, y + 1)}, {"penalty": lambda out: 0.5 * (out**2).sum(axis=1)}
HOOKS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "batch": ([BATCH], DOUBLED),
    "outputs": ([OUTPUTS], {"outputs": lambda out: out * 3}),
    "objective": ([OBJECTIVE], PENALTY),
    "gradients": ([GRADIENTS], {"scale": 0.5}),
    "update": ([HOLD], {"every": 2}),
    "all": ([HOLD, GRADIENTS, OBJECTIVE, BATCH], {**DOUBLED, **PENALTY, "scale": 0.5, "every": 2}),
}


@pairwise("hook", HOOKS)
def test_training_with_hooks_equals_the_loop_by_hand(hook: str, devices: list, hybrid: bool) -> None:
    handlers, changes = HOOKS[hook]
    estimator = fit(handlers, devices, hybrid)
    assert_same_parameters(estimator.net, by_hand(**changes))


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
    with pytest.raises(RuntimeError, match=r"^no\nraised in Fails.change_gradients \(epoch 1, batch 1\)$"):
        fit([Wrap("b", 2.0), Wrap("a", 1.0), Fails()])
    assert calls == ["a in", "b in", "b out", "a out"]


def test_hooks_do_not_change_evaluations_but_can_wrap_them() -> None:
    calls = []

    @contextmanager
    def around_evaluation(estimator: Any) -> Iterator[None]:
        calls.append(estimator.state.epoch)
        yield

    estimator = fit([BATCH, OUTPUTS, handler(around_evaluation=around_evaluation)], val_data=DATA)
    assert calls == [0, 1]
    assert estimator.history["val_mse"][-1] == pytest.approx(estimator.evaluate(DATA)["mse"])


def test_training_figures_are_computed_after_the_hooks() -> None:
    zero = handler(
        change_outputs=lambda estimator, outputs, slots: {"y": outputs["y"] * 0},
        change_batch=lambda estimator, slots: {"truth": slots["truth"] * 0 + 2},
    )
    history = fit(zero).history
    assert history["train_mse"] == pytest.approx([4.0, 4.0])
    assert history["train_l2"] == pytest.approx([2.0, 2.0])


@pytest.mark.parametrize("step", [0, 3])
def test_other_samples_than_those_of_the_batch_are_refused(step: int) -> None:
    class Cuts:
        def change_batch(self, estimator: Any, slots: Any) -> Any:
            left = 2 if estimator.state.step == step else 3
            return {name: array[:left] for name, array in slots.items()}

    net = mlp(2, TWO)
    before = snapshot(net)
    spec = TaskSpec(outputs=["y"], labels=["truth"], losses={"l2": LossSpec(L2, "y", "truth")})
    estimator = MultiEstimator(net, spec, context=TWO)
    with pytest.raises(HandlerError, match='Cuts.change_batch returned "data" of shape .2, 4., but .* 3 s'):
        estimator.fit(DATA, epochs=1, event_handlers=Cuts())
    assert estimator.state.step == step
    if not step:
        assert_unchanged(net, before)


def test_a_held_update_leaves_no_gradient_for_a_batch_that_does_not_reach_it() -> None:
    x, digit, parity = digit_batches([12])[0]
    net = two_heads()
    net.initialize(mx.init.Xavier())
    net.hybridize()
    held = handler(hold_update=lambda estimator, loss: loss["digit"][0] is not None)
    estimator = MultiEstimator(net, digit_spec(), TrainerSpec(".*", "sgd", {"learning_rate": 0.1}))
    estimator.check([(x, digit, parity)])
    before = {name: each.data().asnumpy() for name, each in estimator.parameters.items()}
    data = {"digit": [(x, digit)], "parity": [(x, parity)]}
    estimator.fit(data, epochs=2, sampling=RoundRobin(), event_handlers=held)
    kept = [n for n, each in estimator.parameters.items() if (each.data().asnumpy() == before[n]).all()]
    assert kept == ["digit.weight", "digit.bias"]
