"""Hooks in a real run: handlers that change a step; outputs are handed out only where they are read."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

from multifit import HandlerError, LossSpec, MetricSpec, MultiEstimator, TaskSpec, TrainerSpec
from multifit.gluon.step.step_graph import StepGraph
from multifit.sampling import RoundRobin
from tests.common import shared_nets
from tests.common.compare import assert_same_parameters, assert_unchanged, snapshot
from tests.common.data import digit_batches
from tests.common.grids import ONE, TWO, pairwise
from tests.common.hand_loop import check_by_hand, trainer_of
from tests.common.handlers import handler
from tests.common.nets import hybridized, mlp, sequential
from tests.common.specs import L2, digit_spec

RNG = np.random.RandomState(2)
DATA = [(mx.nd.array(RNG.randn(6, 4)), mx.nd.array(RNG.randn(6, 2))) for _ in range(4)]
SGD = {"learning_rate": 0.1}


def one_output(**metrics: Any) -> TaskSpec:
    return TaskSpec(outputs="y", labels=["truth"], losses={"l2": LossSpec(L2, "y", "truth")}, metrics=metrics)


def fit(handlers: Any, contexts: list[Any] = ONE, hybrid: bool = True, **more: Any) -> Any:
    spec = one_output(mse=MetricSpec(mx.metric.MSE(), "y", "truth"))
    estimator = MultiEstimator(mlp(2, contexts, hybrid), spec, TrainerSpec(".*", "sgd", SGD), contexts)
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
        event: lambda estimator, found=found: found.append(list(estimator.gradients()["trainer"]))
        for event, found in seen.items()
    }
    names = list(fit(handler("Looks", **looks), hybrid=hybrid).parameters)
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

    def wrap(name: str, priority: float) -> Any:
        @contextmanager
        def around_step(estimator: Any) -> Iterator[None]:
            calls.append(f"{name} in")
            try:
                yield
            finally:
                calls.append(f"{name} out")

        return handler(priority=priority, around_step=around_step)

    fit([wrap("b", 2.0), wrap("a", 1.0)])
    assert calls == ["a in", "b in", "b out", "a out"] * 8
    fails = handler("Fails", change_gradients=lambda estimator: 1 / 0)
    with pytest.raises(ZeroDivisionError, match=r"raised in Fails.change_gradients \(epoch 1, batch 1\)$"):
        fit([wrap("b", 2.0), wrap("a", 1.0), fails])
    assert calls == ["a in", "b in", "b out", "a out"] * 9


def test_figures_are_computed_after_the_hooks_which_change_no_evaluation_but_can_wrap_it() -> None:
    calls: list[int] = []

    @contextmanager
    def around_evaluation(estimator: Any) -> Iterator[None]:
        calls.append(estimator.state.epoch)
        yield

    zero = handler(
        change_outputs=lambda estimator, outputs, slots: {"y": outputs["y"] * 0},
        change_batch=lambda estimator, slots: {"truth": slots["truth"] * 0 + 2},
        around_evaluation=around_evaluation,
    )
    estimator = fit(zero, val_data=DATA)
    assert calls == [0, 1]
    assert estimator.history["train_mse"] == pytest.approx([4.0, 4.0])
    assert estimator.history["train_l2"] == pytest.approx([2.0, 2.0])
    assert estimator.history["val_mse"][-1] == pytest.approx(estimator.evaluate(DATA)["mse"])
    assert estimator.history["val_mse"][-1] != 4.0


@pytest.mark.parametrize("step", [0, 3])
def test_other_samples_than_those_of_the_batch_are_refused(step: int) -> None:
    def cut(estimator: Any, slots: Any) -> Any:
        left = 2 if estimator.state.step == step else 3
        return {name: array[:left] for name, array in slots.items()}

    net = mlp(2, TWO)
    before = snapshot(net)
    estimator = MultiEstimator(net, one_output(), context=TWO)
    with pytest.raises(HandlerError, match='Cuts.change_batch returned "data" of shape .2, 4., but .* 3 s'):
        estimator.fit(DATA, epochs=1, event_handlers=handler("Cuts", change_batch=cut))
    assert estimator.state.step == step
    if not step:
        assert_unchanged(net, before)


def test_a_held_update_leaves_no_gradient_for_a_batch_that_does_not_reach_it() -> None:
    x, digit, parity = digit_batches([12])[0]
    net = shared_nets.two_heads()
    net.initialize(mx.init.Xavier())
    net.hybridize()
    held = handler(hold_update=lambda estimator, loss: loss["digit"][0] is not None)
    estimator = MultiEstimator(net, digit_spec(), TrainerSpec(".*", "sgd", SGD))
    estimator.check([(x, digit, parity)])
    before = {name: each.data().asnumpy() for name, each in estimator.parameters.items()}
    data = {"digit": [(x, digit)], "parity": [(x, parity)]}
    estimator.fit(data, epochs=2, sampling=RoundRobin(), event_handlers=held)
    kept = [n for n, each in estimator.parameters.items() if (each.data().asnumpy() == before[n]).all()]
    assert kept == ["digit.weight", "digit.bias"]


# ---- outputs that are read ---------------------------------------------------------------------------------


class Dropped(gluon.nn.HybridBlock):
    """Two heads behind dropout of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.body = gluon.nn.Dense(8, in_units=3, activation="tanh")
        self.left, self.right = (
            sequential(gluon.nn.Dropout(0.5), gluon.nn.Dense(1, in_units=8)) for _ in range(2)
        )

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        body = self.body(x)
        return self.left(body), self.right(body)


def heads() -> Dropped:
    mx.random.seed(0)
    net = hybridized(Dropped())
    net.initialize(mx.init.Xavier())
    return net


def of_heads(kind: Any = MultiEstimator, order: Any = ("left", "right")) -> MultiEstimator:
    losses = {name: LossSpec(L2) for name in order}
    metrics = {"mae": MetricSpec(mx.metric.MAE(), "left", "left")}
    names = ["left", "right"]
    spec = TaskSpec(inputs=["x"], outputs=names, labels=names, losses=losses, metrics=metrics)
    return kind(heads(), spec, TrainerSpec(".*", "sgd", SGD))


SAMPLES = [tuple(mx.nd.array(RNG.normal(size=(6, n))) for n in (3, 1, 1)) for _ in range(3)]


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each batch handed out its outputs."""
    results: list[bool] = []
    run = StepGraph.run

    def recorded(self: StepGraph, *args: Any) -> Any:
        result = run(self, *args)
        results.append(bool(result.outputs) and bool(result.parts))
        return result

    monkeypatch.setattr(StepGraph, "run", recorded)
    return results


class Own(MultiEstimator):
    """Reads the result of a batch itself."""

    def fit_batch(self, batch: Any) -> Any:
        result = super().fit_batch(batch)
        assert set(result.outputs[0]) == {"left", "right"} and set(result.parts[0]) == {"left", "right"}
        return result


# handlers that put what they read into a list
READERS: dict[str, Callable[[list[Any]], dict[str, Any]]] = {
    "nothing": lambda seen: {"batch_end": lambda estimator, **_: None},
    "outputs and losses": lambda seen: {
        "batch_end": lambda estimator, pred, loss: seen.append((pred, loss)),
        "evaluate_batch_end": lambda estimator, pred, loss: seen.append((pred, loss)),
    },
    "all there is, as Gluon's own": lambda seen: {
        "batch_end": lambda estimator, *args, **kwargs: seen.append((kwargs["pred"], kwargs["loss"]))
    },
    "losses, to hold updates back": lambda seen: {
        "hold_update": lambda estimator, loss: seen.append((None, loss))
    },
}


@pytest.mark.parametrize("reads", READERS)
def test_handlers_get_what_they_read_and_nothing_else_is_handed_out(shown, reads):
    seen: list[Any] = []
    history = of_heads().fit(SAMPLES, epochs=2, event_handlers=handler(**READERS[reads](seen)))
    assert shown == [reads != "nothing"] * 6 and len(seen) == sum(shown)
    assert history["train_loss"][1] < history["train_loss"][0]
    for pred, loss in seen:
        assert pred is None or [pred[name][0].shape for name in ("left", "right")] == [(6, 1)] * 2
        assert [loss[name][0].shape for name in ("left", "right")] == [(6,)] * 2


def test_subclasses_and_evaluations_get_what_they_read(shown: list[bool]) -> None:
    of_heads(Own).fit(SAMPLES, epochs=1)
    assert shown == [True] * 3
    seen: list[Any] = []
    evaluating = of_heads()
    blind, looking = (handler(**READERS[reads](seen)) for reads in ("nothing", "outputs and losses"))
    first = evaluating.evaluate(SAMPLES, event_handlers=[blind])
    second = evaluating.evaluate(SAMPLES, event_handlers=[looking])
    assert shown == [True] * 3 + [False] * 3 + [True] * 3 and len(seen) == 3
    assert first == pytest.approx(second, rel=1e-6)
    assert set(evaluating.evaluate_batch(SAMPLES[0]).outputs[0]) == {"left", "right"}  # called by hand: all


@pytest.mark.parametrize("order", [("left", "right"), ("right", "left")], ids="-".join)
def test_dropout_draws_as_in_the_loop_by_hand(order: tuple[str, ...]) -> None:
    """Also where the losses come in another order than the outputs that nobody reads."""
    estimator = of_heads(order=order)
    mx.random.seed(7)
    estimator.fit(SAMPLES, epochs=2)
    hand = heads()
    trainer = trainer_of(hand, options=SGD)
    mx.random.seed(7)
    check_by_hand(hand, SAMPLES[0][0])
    for x, left, right in SAMPLES * 2:
        with autograd.record():
            losses = [L2(*pair) for pair in zip(hand(x), (left, right))]
        autograd.backward(losses)
        trainer.step(6)
    assert_same_parameters(estimator.net, hand)
