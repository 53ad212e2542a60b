"""Trainers, declared or built by the user, equal a hand-written loop: steps, clipping, schedules, devices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from multifit import LossSpec, MultiEstimator, TaskSpec, TrainerSpec

import mxnet as mx  # isort: skip
from mxnet import autograd, gluon, nd  # isort: skip

CE, BCE = gluon.loss.SoftmaxCrossEntropyLoss(), gluon.loss.SigmoidBinaryCrossEntropyLoss()
SGD = {"learning_rate": 0.05, "momentum": 0.9, "wd": 1e-3}
ADAM = {"learning_rate": 5e-3}


def spec(**options: Any) -> TaskSpec:
    losses = {"digit": CE, "parity": LossSpec(BCE, weight=0.5)}
    return TaskSpec(
        inputs=["x"], outputs=["digit", "parity"], labels=["digit", "parity"], losses=losses, **options
    )


def objective(net: Any, x: Any, digit: Any, parity: Any) -> Any:
    digits, parities = net(x)
    return CE(digits, digit) + 0.5 * BCE(parities, parity)


KVSTORES = [(1, None), (1, False), (2, None), (2, True), (2, False)]  # MXNet makes none for one device


@pytest.mark.parametrize("count, on_kvstore", KVSTORES)
@pytest.mark.parametrize("optimizer, options", [("sgd", SGD), ("adam", ADAM)])
def test_trainers_built_by_the_user(
    optimizer: str, options: dict, on_kvstore: Any, count: int, hybridized: bool,
    two_heads: type, data: Any, pair: Any, by_hand: Any, train: Any, same: Any,
) -> None:  # fmt: skip
    batches, devices = data([16] * 18 + [7, 1]), [mx.cpu(i) for i in range(count)]
    hand, ours = pair(two_heads, batches[0][0])
    ours.collect_params().reset_ctx(devices)
    if hybridized:
        ours.hybridize()
    by_hand(hand, [gluon.Trainer(hand.collect_params(), optimizer, options)], batches, objective)
    given = {
        "body": gluon.Trainer(ours.body.collect_params(), optimizer, options, update_on_kvstore=on_kvstore),
        "heads": TrainerSpec("(digit|parity).*", optimizer, options),
    }
    train(ours, spec(), batches, devices, given)
    same(ours, hand)


def test_a_schedule_for_each_trainer(
    devices: list, two_heads: type, data: Any, pair: Any, by_hand: Any, train: Any, same: Any
) -> None:
    batches = data([16] * 19 + [3])
    hand, ours = pair(two_heads, batches[0][0])

    def factor() -> Any:
        return mx.lr_scheduler.FactorScheduler(step=4, factor=0.7, base_lr=0.02)

    def cosine() -> Any:
        return mx.lr_scheduler.CosineScheduler(max_update=20, base_lr=0.1, final_lr=0.01, warmup_steps=3)

    heads = [*hand.digit.collect_params().values(), *hand.parity.collect_params().values()]
    trainers = [
        # Adam would silently replace the scheduler's rate by its own default
        gluon.Trainer(hand.body.collect_params(), "adam", {"learning_rate": 0.02, "lr_scheduler": factor()}),
        gluon.Trainer(heads, "sgd", {"learning_rate": 0.1, "lr_scheduler": cosine()}),
    ]
    by_hand(hand, trainers, batches, objective)
    scheduler = factor()
    given = {
        "body": TrainerSpec("body.*", "adam", lr_scheduler=scheduler),
        "heads": TrainerSpec("(digit|parity).*", "sgd", lr_scheduler=cosine()),
    }
    estimator = train(ours, spec(), batches, devices, given)
    same(ours, hand)
    rates = {"lr_body": trainers[0].learning_rate, "lr_heads": trainers[1].learning_rate}
    assert estimator.learning_rates() == pytest.approx(rates)
    assert scheduler.base_lr == 0.02  # each trainer has a copy of its schedule


@pytest.mark.parametrize("norm", [0.05, 0.5, 1e3])
def test_clips_each_trainers_global_norm(
    norm: float, devices: list, hybridized: bool, two_heads: type, data: Any, pair: Any, train: Any, same: Any
) -> None:
    batches = data([16] * 19 + [5])
    hand, ours = pair(two_heads, batches[0][0])
    if hybridized:
        ours.hybridize()
    body = hand.body.collect_params()
    heads = [*hand.digit.collect_params().values(), *hand.parity.collect_params().values()]
    trainers = gluon.Trainer(body, "sgd", SGD), gluon.Trainer(heads, "adam", ADAM)
    for batch in batches:
        with autograd.record():
            loss = objective(hand, *map(nd.array, batch)).mean()
        loss.backward()
        gluon.utils.clip_global_norm([p.grad() for p in body.values()], norm)
        for trainer in trainers:
            trainer.step(1)
    given = {
        "body": TrainerSpec("body.*", "sgd", SGD, clip_norm=norm),
        "heads": TrainerSpec("(digit|parity).*", "adam", ADAM),
    }
    train(ours, spec(), batches, devices, given)
    same(ours, hand)


def moving(net: Any) -> dict[str, np.ndarray]:
    return {name: p.data().asnumpy() for name, p in net._collect_params_with_prefix().items()}


@pytest.mark.parametrize("where", ["backward", "reduction"])
def test_a_failure_does_not_leave_half_a_step(where: str, two_heads: type, data: Any, silent: list) -> None:
    net, sound = two_heads(), [True]

    def loss(out: Any, label: Any) -> Any:
        return BCE(out, label) if sound else nd.multi_sum_sq(out, num_arrays=1)  # which has no gradient

    losses = {"digit": CE, "parity": LossSpec(loss)}
    declared = TaskSpec(inputs=["x"], outputs=["digit", "parity"], labels=["digit", "parity"], losses=losses)
    trainers = {"body": TrainerSpec("body.*"), "heads": TrainerSpec("(digit|parity).*")}
    estimator = MultiEstimator(net, declared, trainers)
    estimator.fit(data([8] * 3), epochs=1, event_handlers=silent)
    before = moving(net)

    def broken() -> None:
        raise mx.MXNetError("a device is gone")

    if where == "backward":
        sound.clear()
    else:
        estimator.trainers["heads"].allreduce_grads = broken
    with pytest.raises(mx.MXNetError, match="non-differentiable|a device is gone"):
        estimator.fit(data([8] * 3), epochs=1, event_handlers=silent)
    for name, value in moving(net).items():
        np.testing.assert_array_equal(value, before[name])
