"""Methods that need losses only: equal to a loop by hand, without waiting, and what they refuse."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multifit import (
    CheckpointHandler,
    Every,
    LabelSmoothing,
    LabelSpec,
    LossSpec,
    MixUp,
    MultiEstimator,
    SpecError,
    TrainerSpec,
)
from multifit.balance import DWA, FAMO, GLS, IMTLL, RLW, STCH, LossMethod, Uncertainty, UPGrad
from multifit.balance.protocol import measured_losses
from multifit.balance.weighing import weigh_losses
from tests.common.compare import assert_same_parameters, twins
from tests.common.data import digit_batches
from tests.common.grids import TWO, pairwise
from tests.common.hand_loop import SGD, SILENT, SIZES
from tests.common.nets import Heads, hybridized, sequential
from tests.common.shared_nets import two_heads
from tests.common.specs import BCE, CE, digit_spec
from tests.numerics.test_waiting import Waits, placed, waits  # noqa: F401

import mxnet as mx  # isort: skip
from mxnet import autograd, nd  # isort: skip
from mxnet.gluon import nn  # isort: skip


BATCHES = digit_batches(SIZES)
WEIGHTS = {"digit": 1.0, "parity": 0.5}


class Halving(LossMethod):
    """A user's own method in NumPy, which counts its batches."""

    on_device = False

    def start(self, tasks: int) -> dict:
        return {"batches": 0}

    def weights(self, measured: Any, state: dict) -> tuple:
        count = state["batches"] + 1
        return 1 / (measured.losses + count), {"batches": count}


class LookingBack(Halving):
    """A user's own method that sees the losses after the update, too."""

    def after_update(self, measured: Any, after: Any, state: dict) -> dict:
        return {"batches": state["batches"] + float(after[0] < measured.losses[0])}


class CountsLooks(Halving):
    """A user's own method that counts how often it sees losses after an update."""

    looks = 0

    def after_update(self, measured: Any, after: Any, state: dict) -> dict:
        type(self).looks += 1
        return state


class Constant(LossMethod):
    """A user's own method that needs nothing, on the device."""

    needs = "nothing"

    def weights(self, measured: Any, state: dict) -> tuple:
        return measured.losses * 0.25, state


METHODS = {
    "Uncertainty": Uncertainty(learning_rate=0.1),
    "Uncertainty, sgd": Uncertainty(learning_rate=0.1, optimizer="sgd"),
    "IMTLL": IMTLL(learning_rate=0.1),
    "DWA": DWA(),
    "RLW": RLW(seed=3),
    "GLS": GLS(),
    "GLS, every other batch": GLS(every=2),
    "STCH": STCH(mu=0.5),
    "FAMO": FAMO(learning_rate=0.5),
    "FAMO, every other batch": FAMO(learning_rate=0.5, every=2),
    "a user's own": Halving(),
    "a user's own that looks back": LookingBack(),
}


def make() -> Heads:
    return Heads(body=sequential(nn.Dense(8, activation="relu"), nn.BatchNorm()), digit=5, parity=1)


def losses_of(net: Any, batch: Any) -> list:
    x, digit, parity = (nd.array(array, dtype=array.dtype) for array in batch)
    digits, parities = net(x)
    return [CE(digits, digit).mean(), 0.5 * BCE(parities, parity).mean()]


def train_by_hand(net: Any, method: Any, batches: list, epochs: int) -> list[list[np.ndarray]]:
    """Train as the papers do, in NumPy and autograd; return the weights of every batch by epoch."""
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", dict(SGD))
    weights, state, used, step = np.ones(2), method.start(2), [], 0
    for epoch in range(epochs):
        used.append([])
        for batch in batches:
            with autograd.record():
                losses = losses_of(net, batch)
            numbers = np.array([loss.asscalar() for loss in losses], "float64")
            measured = measured_losses(np, 2, numbers, np.full(2, float(epoch)), step)
            if step % method.every == 0:
                weights, state = weigh_losses(method, measured, weights, state)
            heads = [nd.array([weight]) for weight in weights]
            autograd.backward(losses, heads)
            trainer.step(1)
            if hasattr(method, "after_update") and step % method.every == 0:
                statistics = {n: p.data().copy() for n, p in net.collect_params(".*running.*").items()}
                with autograd.pause(train_mode=True):
                    after = np.array([loss.asscalar() for loss in losses_of(net, batch)], "float64")
                state = method.after_update(measured, after, state)
                for name, value in statistics.items():
                    net.collect_params()[name].set_data(value)
            used[-1].append(weights)
            step += 1
    return used


def fitted(net: Any, method: Any, batches: Any, epochs: int = 2, devices: Any = None, **options: Any) -> Any:
    trainers = options.pop("trainers", TrainerSpec(".*", "sgd", SGD))
    handlers = [*SILENT, *options.pop("handlers", [])]
    spec = options.pop("spec", digit_spec())
    estimator = MultiEstimator(net, spec, trainers, devices, balance=method, **options)
    estimator.fit(batches, epochs=epochs, event_handlers=handlers)
    return estimator


@pytest.mark.parametrize(
    ("name", "hybrid"),
    [
        *((name, True) for name in METHODS),
        *((name, False) for name in METHODS if name[:4] in ("a us", "FAMO")),
    ],
)
def test_a_fit_is_the_loop_by_hand(name: str, hybrid: bool) -> None:
    method = METHODS[name]
    hand, net = twins(make, BATCHES[0][0])
    epochs = {"DWA": 3, "STCH": 2}.get(name, 1)  # so many are there before the weights are not equal
    by_hand = train_by_hand(hand, method, BATCHES[1:], epochs)
    history = fitted(hybridized(net, hybrid), method, BATCHES[1:], epochs).history
    assert_same_parameters(net, hand)
    for task, figure in enumerate(("train_weight_digit", "train_weight_parity")):
        expected = [np.mean([weights[task] for weights in epoch]) for epoch in by_hand]
        np.testing.assert_allclose(history[figure], expected, rtol=1e-4)


def own(out: Any, label: Any) -> Any:
    return BCE(out, label)


KINDS = {"traced": LossSpec(BCE, weight=0.5), "operator by operator": LossSpec(own, weight=0.5)}


@pairwise("kind", KINDS)
def test_on_several_devices_and_for_all_kinds_of_losses(kind: str, devices: list, hybrid: bool) -> None:
    batches, method = BATCHES[:-1], IMTLL(learning_rate=0.1)  # two devices need two samples
    hand, net = twins(two_heads, batches[0][0])
    train_by_hand(hand, method, batches, epochs=1)
    spec = digit_spec(losses={"digit": CE, "parity": KINDS[kind]})
    fitted(hybridized(net, hybrid), method, batches, 1, devices, spec=spec)
    assert_same_parameters(net, hand)


def test_a_method_looks_back_at_batches_that_devices_share_unequally() -> None:
    batches = digit_batches([8, 5, 3])
    one, two = twins(two_heads, batches[0][0])
    for net, devices in ((one, None), (two, TWO)):
        fitted(hybridized(net), FAMO(learning_rate=0.5), batches, devices=devices)
    assert_same_parameters(two, one)


@pytest.mark.parametrize(
    ("method", "devices", "missing"),
    [
        (Uncertainty(), TWO, None), (DWA(), None, None), (RLW(), None, -1), (GLS(every=2), TWO, -1),
        (STCH(), None, -1), (Constant(), None, -1),
    ],
    ids=lambda each: type(each).__name__,
)  # fmt: skip
def test_nothing_waits(method: Any, devices: Any, missing: Any, waits: Waits) -> None:  # noqa: F811
    """Neither for weights nor to know whether labels are missing."""
    spec = digit_spec(labels=[LabelSpec("digit", missing=missing), "parity"])
    batches = placed(digit_batches([8] * 8))
    fitted(hybridized(two_heads()), method, batches, 1, devices, handlers=[waits], spec=spec)
    assert waits.count == 0


def test_a_method_on_the_device_that_needs_nothing() -> None:
    hand, net = twins(two_heads, BATCHES[0][0])
    batches = BATCHES[:-1]  # two devices need two samples
    losses = {name: LossSpec(loss, weight=0.25) for name, loss in (("digit", CE), ("parity", BCE))}
    fitted(hand, None, batches, spec=digit_spec(losses=losses))
    fitted(net, Constant(), batches, devices=TWO, spec=digit_spec(losses={"digit": CE, "parity": BCE}))
    assert_same_parameters(net, hand)


def test_accumulated_batches_are_weighed_one_by_one() -> None:
    """The method sees each batch's losses, not their share of the update."""
    hand, net = twins(two_heads, BATCHES[0][0])
    pairs = BATCHES[:2]
    trainer = mx.gluon.Trainer(hand.collect_params(), "sgd", dict(SGD))
    for parameter in hand.collect_params().values():
        parameter.grad_req = "add"
    for batch in pairs:
        with autograd.record():
            losses = losses_of(hand, batch)
        numbers = np.array([loss.asscalar() for loss in losses], "float64")
        weights, _ = weigh_losses(GLS(), measured_losses(np, 2, numbers, np.zeros(2)), np.ones(2), {})
        autograd.backward(losses, [nd.array([weight / 2]) for weight in weights])
    trainer.step(1)
    fitted(net, GLS(), pairs, 1, accumulate=2)
    assert_same_parameters(net, hand)


@pytest.mark.parametrize(
    ("rhythms", "looks"),
    [([{"every": 2}], 4), ([{"every": 2, "accumulate": True}, {"every": 4}], 4), ([{"every": 2}, {}], 8)],
)
def test_a_method_looks_back_only_where_a_trainer_has_updated(rhythms: list, looks: int) -> None:
    patterns = [".*"] if len(rhythms) == 1 else ["body.*", "(digit|parity).*"]
    trainers = {each: TrainerSpec(each, "sgd", SGD, **rhythm) for each, rhythm in zip(patterns, rhythms)}
    CountsLooks.looks = 0
    fitted(two_heads(), CountsLooks(), digit_batches([8] * 8), 1, trainers=trainers)
    assert CountsLooks.looks == looks


def test_another_method_is_another_run(tmp_path: Path) -> None:
    def run(method: Any, **options: Any) -> None:
        estimator = MultiEstimator(two_heads(), digit_spec(), balance=method)
        estimator.fit(BATCHES, epochs=1, event_handlers=[*SILENT, CheckpointHandler(tmp_path)], **options)

    run(DWA())
    for method, message in (
        (None, 'balance: {"method": "DWA"'),
        (GLS(), 'balance.method: "DWA" in the checkpoint, "GLS" here'),
        (DWA(temperature=3), 'balance.options["temperature"]: 2.0 in the checkpoint, 3.0 here'),
        (DWA(tasks={"all": ["digit"]}), "balance.tasks"),
    ):
        with pytest.raises(SpecError) as raised:
            run(method, resume=tmp_path)
        assert message in str(raised.value)


class Wide(LossMethod):
    """Remembers something that does not fit on the device."""

    def start(self, tasks: int) -> dict:
        return {"history": np.zeros((tasks, 3))}

    def weights(self, measured: Any, state: dict) -> tuple: ...


def own_gradient(out: Any, label: Any) -> Any:
    """A loss that ignores the gradient that it receives."""
    return -nd.log(nd.pick(nd.SoftmaxOutput(out, label), label))


class Incomplete:
    """Half a method."""

    def start(self, tasks: int) -> dict: ...
    def weights(self, measured: Any, state: dict) -> tuple: ...


NO_WEIGHT = {name: LossSpec(fn, weight=0) for name, fn in (("digit", CE), ("parity", BCE))}
PAIRS = {name: LossSpec(BCE, "parity", "parity") for name in ("a", "a_b", "b", "b_b")}
# fmt: off
ERRORS: dict[str, tuple[Any, dict[str, Any]]] = {
    "balance: it is the class GLS; give an instance: GLS()": (GLS, {}),
    "balance: it is 'UPGrad'; valid is a method of multifit.balance": ("UPGrad", {}),
    'Incomplete has no "needs", "on_device", "every", "groups"; derive it from': (Incomplete(), {}),
    "Wide.start(2) returns history of shape (2, 3); on the device, a method remembers": (Wide(), {}),
    'tasks["a"]: there is no loss "digits" (did you mean "digit"?)': (GLS(tasks={"a": ["digits"]}), {}),
    'tasks["a"] has no loss': (GLS(tasks={"a": []}), {}),
    'the loss "digit" is in the tasks "a", "b"': (GLS(tasks={"a": ["digit"], "b": ["digit"]}), {}),
    'the task "digit" has the name of a loss that is not in it': (GLS(tasks={"digit": ["parity"]}), {}),
    'there is one task, "a", and nothing to weigh it against': (GLS(tasks={"a": ["digit", "parity"]}), {}),
    'losses of weight 0 have no gradient, which leaves one task, "digit", and nothing to':
        (UPGrad(), {"losses": {"digit": CE, "parity": LossSpec(BCE, weight=0)}}),
    "losses of weight 0 have no gradient, which leaves no task to weigh; leave balance= out":
        (UPGrad(), {"losses": NO_WEIGHT}),
    'the figure "weight_digit" is also that of a loss or metric':
        (GLS(), {"losses": {"digit": CE, "weight_digit": LossSpec(BCE, "parity", "parity")}}),
    'two pairs of tasks have the figure "cosine_a_b_b"; rename a task':
        (GLS(), {"losses": PAIRS, "unused": ["digit"]}),
}
# fmt: on


@pytest.mark.parametrize("message", ERRORS)
def test_what_cannot_be_weighed(message: str) -> None:
    method, changes = ERRORS[message]
    with pytest.raises(SpecError) as raised:
        MultiEstimator(two_heads(), digit_spec(**changes), balance=method)
    assert message in str(raised.value)


def test_a_loss_that_ignores_its_gradient_cannot_be_weighed() -> None:
    spec = digit_spec(losses={"digit": own_gradient, "parity": BCE})
    with pytest.raises(SpecError) as raised:
        fitted(two_heads(), GLS(), BATCHES, spec=spec)
    assert 'losses["digit"]: it ignores the gradient that it receives, so balance= would' in str(raised.value)


@pytest.mark.parametrize(
    ("method", "handler"),
    [(GLS(), MixUp(loss="digit")), (UPGrad(), Every(2, "batch", LabelSmoothing()))],
    ids=["MixUp", "a smoothing"],
)
def test_handlers_that_blend_losses_are_refused_before_the_first_batch(method: Any, handler: Any) -> None:
    class Unread(list):
        def __iter__(self) -> Any:
            raise AssertionError("a batch is read")

    with pytest.raises(SpecError) as raised:
        fitted(hybridized(two_heads()), method, Unread(BATCHES), handlers=[handler])
    assert "replaces a share of losses by others, which would not count as" in str(raised.value)
    assert ("balance: MixUp " if isinstance(handler, MixUp) else "LabelSmoothing") in str(raised.value)
    assert "leave the handler or balance= out" in str(raised.value)
