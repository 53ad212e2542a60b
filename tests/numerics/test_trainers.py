"""Trainers, declared or the user's own, and gradients that only some batches or devices have, as by hand."""

from typing import Any

import numpy as np
import pytest

from multifit import LossSpec, MultiEstimator, SpecError, TaskSpec, TrainerSpec

from tests.common.compare import assert_same_parameters, assert_unchanged, copy_parameters  # isort: skip
from tests.common.compare import snapshot, twins  # isort: skip
from tests.common.data import digit_batches, regression_batches
from tests.common.grids import ONE, TWO, pairwise, two_settings
from tests.common.hand_loop import ADAM, SILENT, SIZES, train, train_by_hand, trainer_of
from tests.common.nets import hybridized, sequential
from tests.common.shared_nets import two_heads, two_losses
from tests.common.specs import BCE, CE, L2, digit_spec, one_loss_spec

import mxnet as mx  # isort: skip
from mxnet import autograd, gluon, nd  # isort: skip
from mxnet.gluon import nn  # isort: skip

SGD = {"learning_rate": 0.05, "momentum": 0.9, "wd": 1e-3}
PLAIN = {"learning_rate": 0.1}


def parameters_of_heads(net: Any) -> list[Any]:
    return [*net.digit.collect_params().values(), *net.parity.collect_params().values()]


@pytest.mark.parametrize(
    ("optimizer", "options", "devices", "hybrid"), [("sgd", SGD, ONE, True), ("adam", ADAM, TWO, False)]
)
def test_trainers_of_the_user(optimizer: str, options: Any, devices: list, hybrid: bool) -> None:
    batches = digit_batches(SIZES)
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


def clip(parameters: Any, norm: float | None) -> None:
    if norm is not None:
        gluon.utils.clip_global_norm([parameter.grad() for parameter in parameters], norm)


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
        clip(body.values(), norm)
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


class Branching(gluon.Block):
    """Takes a branch that depends on the batch: a parameter may get a gradient on one device only."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Dense(3, in_units=5), nn.Dense(3, in_units=5)

    def forward(self, x: Any) -> Any:
        return self.left(x) if x[0, 0].asscalar() > 0 else self.right(x)


def signs(pattern: list[list[int]]) -> list[tuple]:
    """Batches of two halves; the sign of a half's first number chooses its branch."""
    batches = regression_batches([8] * len(pattern), 5, (3,))
    for (x, _), (left, right) in zip(batches, pattern):
        x[:4, 0], x[4:, 0] = left, right
    return batches


def test_a_gradient_that_no_device_or_only_one_has_is_not_an_old_one() -> None:
    batches = signs([[1, 1], [1, -1], [-1, -1], [1, 1], [-1, 1]] * 2)
    hand, net = twins(Branching, np.ones((2, 5), "float32"))
    net.collect_params().reset_ctx(TWO)
    trainer = trainer_of(hand, options=PLAIN)
    for x, y in batches:
        x, y = nd.array(x), nd.array(y)
        with autograd.record():
            loss = [L2(hand(x[half]), y[half]) for half in (slice(0, 4), slice(4, 8))]
        autograd.backward(loss)  # of both at once: each gradient is written once, as their sum
        trainer.step(8, ignore_stale_grad=True)
    own = gluon.Trainer(net.collect_params(), "sgd", PLAIN)
    train(net, one_loss_spec(L2), batches, TWO, own)
    assert_same_parameters(net, hand)


def words(sparse: bool) -> Any:
    return sequential(nn.Embedding(9, 4, sparse_grad=sparse), nn.Dense(2))


def of_words() -> list[Any]:
    random = np.random.RandomState(8)
    pairs = regression_batches([6, 6, 6, 6, 1], 3, (2,))
    return [(random.randint(0, 9, x.shape).astype("float32"), y) for x, y in pairs]


def used(net: Any, x: Any) -> Any:
    """Return the parameters that a batch reaches."""
    part = net if not hasattr(net, "left") else net.left if x[0, 0] > 0 else net.right
    return part.collect_params().values()


# the net by hand and that of the estimator, batches, the norm and the devices
CLIPPED: dict[str, tuple[Any, Any, Any, float | None, Any]] = {
    "not reached, does not count": (Branching, Branching, signs([[1, 1], [-1, -1]] * 4), 0.3, ONE),
    "sparse": (lambda: words(False), lambda: words(True), of_words(), None, TWO),
    "sparse and clipped": (lambda: words(False), lambda: words(True), of_words(), 0.1, ONE),
}


@pytest.mark.parametrize(("make", "other", "batches", "norm", "devices"), CLIPPED.values(), ids=CLIPPED)
def test_gradients_of_kinds(make: Any, other: Any, batches: Any, norm: float | None, devices: list) -> None:
    hand, net = (twins(each, batches[0][0])[0] for each in (make, other))
    copy_parameters(hand, net)
    trainer = trainer_of(hand, options=PLAIN)
    for x, y in batches:
        with autograd.record():
            loss = L2(hand(nd.array(x)), nd.array(y)).mean()
        loss.backward()
        clip(used(hand, x), norm)
        trainer.step(1, ignore_stale_grad=True)
    train(net, one_loss_spec(L2), batches, devices, TrainerSpec(".*", "sgd", PLAIN, clip_norm=norm))
    assert_same_parameters(net, hand)


@two_settings
def test_gradients_that_add_up_start_from_zero_at_each_step(devices: list, hybrid: bool) -> None:
    batches = digit_batches(SIZES)
    hand, net = twins(two_heads, batches[0][0])
    net.collect_params().setattr("grad_req", "add")
    train_by_hand(hand, trainer_of(hand), batches, lambda net, x, digit, parity: CE(net(x)[0], digit))
    spec = TaskSpec(
        inputs=["x"], outputs=["digit", ...], labels=["digit", "parity"], losses={"digit": CE},
        unused=["labels.parity"],
    )  # fmt: skip
    train(hybridized(net, hybrid), spec, batches, devices)
    assert_same_parameters(net, hand)
