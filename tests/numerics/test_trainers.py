"""Trainers, declared or the user's own, equal a hand-written loop: steps, clipping, schedules, devices."""

import re
from typing import Any

import pytest

from multifit import LossSpec, MultiEstimator, SpecError, TrainerSpec
from tests.common.compare import assert_same_parameters, assert_unchanged, snapshot, twins
from tests.common.data import digit_batches
from tests.common.grids import ONE, TWO, pairwise
from tests.common.hand_loop import ADAM, SILENT, SIZES, train, train_by_hand
from tests.common.nets import hybridized
from tests.common.shared_nets import two_heads, two_losses
from tests.common.specs import BCE, CE, digit_spec

import mxnet as mx  # isort: skip
from mxnet import autograd, gluon, nd  # isort: skip

SGD = {"learning_rate": 0.05, "momentum": 0.9, "wd": 1e-3}
OPTIMIZERS = {"sgd": SGD, "adam": ADAM}


def parameters_of_heads(net: Any) -> list[Any]:
    return [*net.digit.collect_params().values(), *net.parity.collect_params().values()]


OWN = [("sgd", ONE, True), ("adam", TWO, False)]


@pytest.mark.parametrize(("optimizer", "devices", "hybrid"), OWN)
def test_trainers_of_the_user(optimizer: str, devices: list, hybrid: bool) -> None:
    batches, options = digit_batches(SIZES), OPTIMIZERS[optimizer]
    hand, net = twins(two_heads, batches[0][0])
    net.collect_params().reset_ctx(devices)
    train_by_hand(hand, gluon.Trainer(hand.collect_params(), optimizer, options), batches, two_losses)
    trainers = {
        "body": gluon.Trainer(net.body.collect_params(), optimizer, options),
        "heads": TrainerSpec("(digit|parity).*", optimizer, options),
    }
    train(hybridized(net, hybrid), digit_spec(), batches, devices, trainers)
    assert_same_parameters(net, hand)


def test_a_schedule_for_each_trainer() -> None:
    batches = digit_batches([16] * 11 + [3])
    hand, net = twins(two_heads, batches[0][0])

    def factor() -> Any:
        return mx.lr_scheduler.FactorScheduler(step=4, factor=0.7, base_lr=0.02)

    def cosine() -> Any:
        return mx.lr_scheduler.CosineScheduler(max_update=10, base_lr=0.1, final_lr=0.01, warmup_steps=3)

    by_hand = [
        # Adam would silently replace the scheduler's rate by its own default
        gluon.Trainer(hand.body.collect_params(), "adam", {"learning_rate": 0.02, "lr_scheduler": factor()}),
        gluon.Trainer(parameters_of_heads(hand), "sgd", {"learning_rate": 0.1, "lr_scheduler": cosine()}),
    ]
    train_by_hand(hand, by_hand, batches, two_losses)
    scheduler = factor()
    trainers = {
        "body": TrainerSpec("body.*", "adam", lr_scheduler=scheduler),
        "heads": TrainerSpec("(digit|parity).*", "sgd", lr_scheduler=cosine()),
    }
    estimator = train(net, digit_spec(), batches, TWO, trainers)
    assert_same_parameters(net, hand)
    rates = {"lr_body": by_hand[0].learning_rate, "lr_heads": by_hand[1].learning_rate}
    assert estimator.learning_rates() == pytest.approx(rates)
    assert scheduler.base_lr == 0.02  # each trainer has a copy of its schedule


@pairwise("norm", [0.05, 1e3])
def test_clips_each_trainers_global_norm(norm: float, devices: list, hybrid: bool) -> None:
    batches = digit_batches(SIZES)
    hand, net = twins(two_heads, batches[0][0])
    body = hand.body.collect_params()
    by_hand = gluon.Trainer(body, "sgd", SGD), gluon.Trainer(parameters_of_heads(hand), "adam", ADAM)
    for batch in batches:
        with autograd.record():
            loss = two_losses(hand, *map(nd.array, batch)).mean()
        loss.backward()
        gluon.utils.clip_global_norm([p.grad() for p in body.values()], norm)
        for trainer in by_hand:
            trainer.step(1)
    trainers = {
        "body": TrainerSpec("body.*", "sgd", SGD, clip_norm=norm),
        "heads": TrainerSpec("(digit|parity).*", "adam", ADAM),
    }
    train(hybridized(net, hybrid), digit_spec(), batches, devices, trainers)
    assert_same_parameters(net, hand)


@pytest.mark.parametrize("where", ["backward", "reduction"])
def test_a_failure_does_not_leave_half_a_step(where: str) -> None:
    net, sound = two_heads(), [True]

    def loss(out: Any, label: Any) -> Any:
        return BCE(out, label) if sound else nd.multi_sum_sq(out, num_arrays=1)  # which has no gradient

    spec = digit_spec(losses={"digit": CE, "parity": LossSpec(loss)})
    trainers = {"body": TrainerSpec("body.*"), "heads": TrainerSpec("(digit|parity).*")}
    estimator = MultiEstimator(net, spec, trainers)
    estimator.fit(digit_batches([8] * 3), epochs=1, event_handlers=SILENT)
    before = snapshot(net)

    def broken() -> None:
        raise mx.MXNetError("a device is gone")

    if where == "backward":
        sound.clear()
    else:
        estimator.trainers["heads"].trainer.allreduce_grads = broken
    error = {"backward": (SpecError, "non-differentiable"), "reduction": (mx.MXNetError, "a device is gone")}
    with pytest.raises(error[where][0], match=error[where][1]):
        estimator.fit(digit_batches([8] * 3), epochs=1, event_handlers=SILENT)
    assert_unchanged(net, before)


# what is frozen by its grad_req in one fit after the other
FREEZES = {
    "a body that thaws": ("body.bias", "body.*", ""),
    "to and fro": ("", "body.*", "", "digit.*", "body.bias", ""),
}


@pytest.mark.parametrize("freezes", FREEZES.values(), ids=FREEZES)
@pairwise("declared", ["a Trainer", "several"])
def test_what_becomes_trainable_between_fits_is_trained(
    freezes: tuple[str, ...], declared: str, devices: list, hybrid: bool
) -> None:
    """Moments, counts and schedules go on, also those of parameters that were frozen for a while."""
    batches = digit_batches([12, 7])
    hand, net = twins(two_heads, batches[0][0])
    net.collect_params().reset_ctx(devices)

    def options() -> dict[str, Any]:
        if len(devices) > 1:  # where counts differ, MXNet's own trainer asks a schedule once for each device
            return ADAM
        return {"lr_scheduler": mx.lr_scheduler.FactorScheduler(step=3, factor=0.7, base_lr=0.01), **ADAM}

    patterns = {"heads": "(digit|parity).*", "body": "body.*"} if declared == "several" else {"all": ".*"}
    by_hand = [gluon.Trainer(selected(hand, each), "adam", options()) for each in patterns.values()]
    trainers = {
        name: gluon.Trainer(selected(net, pattern), "adam", options())
        if declared == "a Trainer"
        else TrainerSpec(pattern, "adam", options())
        for name, pattern in patterns.items()
    }
    estimator = MultiEstimator(hybridized(net, hybrid), digit_spec(), trainers, devices)
    for pattern in freezes:
        for each in (hand, net):
            for name, parameter in each._collect_params_with_prefix().items():
                parameter.grad_req = "null" if re.fullmatch(pattern, name) else "write"
        train_by_hand(hand, by_hand, batches, two_losses)
        estimator.fit(batches, epochs=1, event_handlers=SILENT)
        trained = {name for name, p in estimator.parameters.items() if p.grad_req != "null"}
        assert {name for each in estimator.plan.trainers for name in each.parameters} == trained
    assert_same_parameters(net, hand)


def selected(net: Any, pattern: str) -> list[Any]:
    named = net._collect_params_with_prefix()
    return [parameter for name, parameter in named.items() if re.fullmatch(pattern, name)]
