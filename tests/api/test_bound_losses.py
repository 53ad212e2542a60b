"""Losses that are bound to trainers: adversarial nets train as in a loop by hand, without detach."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn

from multifit import Every, LossSpec, MultiEstimator, SpecError, TaskSpec, TrainerSpec
from multifit.balance import DWA
from multifit.distributed import ALONE, World
from multifit.handlers import CheckpointHandler, MixUp
from tests.common.compare import assert_same_parameters, assert_unchanged, snapshot
from tests.common.grids import ONE, TWO
from tests.common.hand_loop import SGD, SILENT
from tests.common.joint_training import assert_as_alone
from tests.common.nets import hybridized, sequential
from tests.common.resuming import assert_resumes_bit_for_bit

RANDOM = np.random.RandomState(0)
BATCHES = [tuple(RANDOM.randn(n, width).astype("float32") for width in (3, 4)) for n in (6, 6, 6, 5, 6, 1)]
PARTS = ("generator", "discriminator")


class Softplus(gluon.HybridBlock):
    """The cross entropy of a score against real (-1) or made (1)."""

    def __init__(self, sign: int) -> None:
        super().__init__()
        self.sign = sign

    def hybrid_forward(self, F: Any, score: Any) -> Any:
        return F.Activation(self.sign * score, act_type="softrelu")


class Adversarial(gluon.HybridBlock):
    """A generator, and a discriminator of what is real and of what it makes."""

    def __init__(self, *layers: Any) -> None:
        super().__init__()
        self.generator = sequential(nn.Dense(8, in_units=3, activation="tanh"), nn.Dense(4, in_units=8))
        self.discriminator = sequential(
            nn.Dense(8, in_units=4, activation="tanh"), *layers, nn.Dense(1, in_units=8)
        )

    def hybrid_forward(self, F: Any, noise: Any, image: Any) -> Any:
        return self.discriminator(image), self.discriminator(self.generator(noise))


def make_net(*layers: Any, devices: Any = ONE) -> Any:
    """Return the nets, with further layers in the discriminator."""
    mx.random.seed(4)
    net = Adversarial(*layers)
    net.initialize(mx.init.Xavier(), ctx=devices)
    return hybridized(net)


def make_spec(hybrid: bool = True, **changes: Any) -> TaskSpec:
    real, made = (hybridized(Softplus(sign), hybrid) for sign in (-1, 1))
    losses = {
        "real": LossSpec(real, "real", trainers="discriminator"),
        "made": LossSpec(made, "made", trainers=["discriminator"]),
        "fool": LossSpec(real, "made", trainers="generator", weight=0.5),
    }
    return TaskSpec(
        outputs=["real", "made"], labels=(), losses={**losses, **changes}, inputs=["noise", "image"]
    )


def make_trainers(**options: Any) -> dict[str, TrainerSpec]:
    return {part: TrainerSpec(f"{part}.*", "sgd", SGD, **options) for part in PARTS}


def fit(
    net: Any, spec: TaskSpec, devices: Any = ONE, handlers: Any = SILENT, trainers: Any = None,
    world: World = ALONE, frozen: Any = (), **options: Any,
) -> MultiEstimator:  # fmt: skip
    estimator = MultiEstimator(net, spec, trainers or make_trainers(), devices, frozen=frozen, world=world)
    estimator.fit(BATCHES, epochs=2, event_handlers=handlers, **options)
    return estimator


def train_by_hand(net: Any) -> None:
    """Train both by what they did before either is updated."""
    real, made = Softplus(-1), Softplus(1)
    trainers = [gluon.Trainer(getattr(net, part).collect_params(), "sgd", SGD) for part in PARTS]
    for noise, image in BATCHES * 2:
        with autograd.record():
            picture = net.generator(nd.array(noise))
            judged = real(net.discriminator(nd.array(image))), made(net.discriminator(picture.detach()))
            fooled = 0.5 * real(net.discriminator(picture))
        fooled.backward(retain_graph=True)
        autograd.backward(judged)  # which overwrites the gradients of the discriminator alone
        for trainer in trainers:
            trainer.step(len(noise))


def test_adversarial_nets_train_as_by_hand(caplog: Any) -> None:
    hand, net = (make_net(nn.BatchNorm(in_channels=8)) for _ in range(2))
    hand.hybridize(False)
    train_by_hand(hand)
    with caplog.at_level(logging.WARNING, logger="multifit"):
        estimator = fit(net, make_spec())
    assert not caplog.records
    expected = hand._collect_params_with_prefix()
    for name, parameter in estimator.parameters.items():
        if parameter.grad_req != "null":  # statistics are counted in another order
            value = expected[name].data().asnumpy()
            np.testing.assert_allclose(parameter.data().asnumpy(), value, rtol=1e-4, atol=1e-5)


def train_biases_by_hand(net: Any, still: str) -> None:
    """Train weights by the first score alone, and biases by both; one parameter stays as it is."""
    loss, parameters = Softplus(-1), net._collect_params_with_prefix()
    moved = {name: parameter for name, parameter in parameters.items() if name != still}
    trainer = gluon.Trainer({each.name: each for each in moved.values()}, "sgd", SGD)
    for noise, image in BATCHES * 2:
        with autograd.record():
            real, made = map(loss, net(nd.array(noise), nd.array(image)))
        net.collect_params().zero_grad()
        made.backward(retain_graph=True)
        of_made = {name: each.grad().copy() for name, each in moved.items()}
        net.collect_params().zero_grad()
        real.backward()
        for name, parameter in moved.items():
            if name.endswith("bias"):
                parameter.grad()[:] += of_made[name]
        trainer.step(len(noise))


@pytest.mark.parametrize(
    ("devices", "still"),
    [(TWO, []), (ONE, ["discriminator.0.weight"])],
    ids=["two devices", "a frozen weight"],
)
def test_weights_and_biases_of_a_layer_may_have_trainers_of_their_own(devices: Any, still: list[str]) -> None:
    hand, net = make_net(), make_net(devices=devices)
    train_biases_by_hand(hand, "".join(still))
    loss = hybridized(Softplus(-1))
    losses = {"real": LossSpec(loss, "real"), "made": LossSpec(loss, "made", trainers="bias")}
    spec = TaskSpec(outputs=["real", "made"], labels=(), losses=losses, inputs=["noise", "image"])
    trainers = {part: TrainerSpec(f".*{part}", "sgd", SGD) for part in ("weight", "bias")}
    fit(net, spec, devices, trainers=trainers, frozen=still)
    assert_same_parameters(net, hand)


def test_devices_ranks_and_binding_to_all_trainers_change_nothing() -> None:
    one, two, unbound, bound = make_net(), make_net(devices=TWO), make_net(), make_net()
    fit(one, make_spec())
    fit(two, make_spec(), TWO)
    assert_same_parameters(two, one)
    assert_as_alone(lambda world: snapshot(fit(make_net(), make_spec(), world=world).net))
    losses = make_spec().losses
    for net, trainers in ((unbound, None), (bound, list(PARTS))):
        fit(net, make_spec(**{name: replace(loss, trainers=trainers) for name, loss in losses.items()}))
    assert_same_parameters(bound, unbound, rtol=1e-5, atol=1e-6)


def test_a_resumed_run_is_equal_bit_for_bit(tmp_path: Path) -> None:
    """With dropout, whose masks are drawn anew."""

    def run(folder: Path, *handlers: Any, **options: Any) -> Any:
        saving = CheckpointHandler(folder, Every(2, "batch"), seed=7)
        net = make_net(nn.BatchNorm(in_channels=8), nn.Dropout(0.3))
        return fit(net, make_spec(), handlers=[*SILENT, saving, *handlers], **options)

    assert_resumes_bit_for_bit(run, tmp_path, 7)


def test_the_plan_and_the_summary_say_what_moves_what() -> None:
    plan = MultiEstimator(make_net(), make_spec(), make_trainers()).check(BATCHES)
    by_trainer = {trainer.name: trainer.losses for trainer in plan.trainers}
    assert by_trainer == {"generator": ("fool",), "discriminator": ("real", "made")}
    row = next(row for row in plan.train.rows if row.name == "fool")
    assert row.goes_to == "0.5 x Softplus(outputs.made) / samples, trains generator"
    assert "Softplus(outputs.made) / samples, trains discriminator" in " ".join(make_spec().summary().split())


# ---- errors ------------------------------------------------------------------------------------------------


def bound(**options: Any) -> TaskSpec:
    return make_spec(fool=replace(make_spec().losses["fool"], **options))


class ByShape(gluon.HybridBlock):
    """A loss of a toolkit that looks at a shape."""

    __module__ = "gluoncv.loss"

    def hybrid_forward(self, F: Any, score: Any) -> Any:
        return F.sum(score) / score.shape[0]


ADDED = SimpleNamespace(change_objective=lambda estimator, objectives: [*objectives, objectives[0] * 0.1])
DECLARED: dict[str, tuple[Callable[[], Any], str]] = {
    "no name": (lambda: bound(trainers=[]), "trainers is empty; name at least one, or leave it out"),
    "a number": (lambda: bound(trainers=[1]), "trainers holds 1; give a list of strings"),
    "twice": (lambda: bound(trainers=["generator"] * 2), 'trainers names "generator" 2 times'),
    "balanced": (lambda: MultiEstimator(make_net(), make_spec(), balance=DWA()),
        'balance: the losses "real", "made", "fool" are bound to trainers'),
}  # fmt: skip
# specs, handlers, and what the message says
FAULTS: dict[str, tuple[Callable[[], TaskSpec], list[Any], str]] = {
    "an unknown trainer": (lambda: bound(trainers="generatr"), [],
        'losses["fool"]: there is no trainer "generatr" (did you mean "generator"?); valid are "generator"'),
    "a trainer without losses": (lambda: bound(trainers="discriminator"), [],
        'trainers["generator"]: no loss trains its parameters, as all are bound to other trainers'),
    "a net that is not hybridized": (make_spec, [],
        'binds "fool", "made", "real" to trainers, and the net is not in it: call net.hybridize()'),
    "losses that cannot be traced": (lambda: make_spec(hybrid=False), [],
        'and losses["real"] is not in it: make it a HybridBlock and hybridize it; or leave trainers= out'),
    "a loss beside them that cannot": (
        lambda: make_spec(penalty=LossSpec(lambda score: 0.1 * score**2, "made")), [],
        'losses["penalty"] is not in it: make it a HybridBlock'),
    "a loss that never gets there": (lambda: bound(outputs="real"), [],
        'losses["fool"]: its gradient reaches no parameter of the trainers that it is bound to'),
    "a loss that looks at shapes": (lambda: bound(fn=ByShape()), [],
        "losses: they are bound to trainers in the graph of net and losses, which cannot be traced: 'Sym"),
    "a handler that adds an objective": (make_spec, [ADDED],
        "it is not known for which trainers that is; leave the handler or trainers= out"),
    "a handler that blends losses": (make_spec, [MixUp()], "losses: MixUp replaces a share of"),
}  # fmt: skip


@pytest.mark.parametrize(("declare", "text"), DECLARED.values(), ids=DECLARED)
def test_wrong_declarations_are_refused(declare: Any, text: str) -> None:
    with pytest.raises(SpecError) as caught:
        declare()
    assert text in str(caught.value)


@pytest.mark.parametrize("case", FAULTS)
def test_what_cannot_be_bound_is_refused(case: str) -> None:
    declare, handlers, text = FAULTS[case]
    net = make_net()
    net.hybridize(case != "a net that is not hybridized")
    before = snapshot(net)
    with pytest.raises(SpecError) as caught:
        fit(net, declare(), handlers=[*SILENT, *handlers])
    assert text in str(caught.value)
    assert_unchanged(net, before)
