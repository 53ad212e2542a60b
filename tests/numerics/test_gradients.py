"""Gradients that only some batches or devices have, that add up, or that are sparse."""

from typing import Any

import numpy as np
import pytest

from multifit import TaskSpec, TrainerSpec
from tests.common.compare import assert_same_parameters, copy_parameters, twins
from tests.common.data import digit_batches, regression_batches
from tests.common.grids import ONE, TWO, two_settings
from tests.common.hand_loop import SIZES, train, train_by_hand, trainer_of
from tests.common.nets import hybridized, sequential
from tests.common.shared_nets import two_heads
from tests.common.specs import CE, L2, one_loss_spec

from mxnet import autograd, gluon, nd  # isort: skip
from mxnet.gluon import nn  # isort: skip

SGD = {"learning_rate": 0.1}


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
    trainer = trainer_of(hand, options=SGD)
    for x, y in batches:
        x, y = nd.array(x), nd.array(y)
        with autograd.record():
            loss = [L2(hand(x[half]), y[half]) for half in (slice(0, 4), slice(4, 8))]
        autograd.backward(loss)  # of both at once: each gradient is written once, as their sum
        trainer.step(8, ignore_stale_grad=True)
    own = gluon.Trainer(net.collect_params(), "sgd", SGD)
    train(net, one_loss_spec(L2), batches, TWO, own)
    assert_same_parameters(net, hand)


def test_a_gradient_that_was_not_reached_does_not_count_for_the_norm() -> None:
    batches = signs([[1, 1], [-1, -1]] * 4)
    hand, net = twins(Branching, np.ones((2, 5), "float32"))
    trainer = trainer_of(hand, options=SGD)
    for x, y in batches:
        with autograd.record():
            loss = L2(hand(nd.array(x)), nd.array(y)).mean()
        loss.backward()
        used = hand.left if x[0, 0] > 0 else hand.right
        gluon.utils.clip_global_norm([p.grad() for p in used.collect_params().values()], 0.3)
        trainer.step(1, ignore_stale_grad=True)
    train(net, one_loss_spec(L2), batches, None, TrainerSpec(".*", "sgd", SGD, clip_norm=0.3))
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


@pytest.mark.parametrize("clip, devices", [(None, TWO), (0.1, ONE)])
def test_sparse_gradients(clip: Any, devices: list) -> None:
    random = np.random.RandomState(8)
    batches = [(random.randint(0, 9, x.shape), y) for x, y in regression_batches([6, 6, 6, 6, 1], 3, (2,))]
    batches = [(x.astype("float32"), y) for x, y in batches]

    def make(sparse: bool) -> Any:
        return sequential(nn.Embedding(9, 4, sparse_grad=sparse), nn.Dense(2))

    hand, net = (twins(lambda sparse=sparse: make(sparse), batches[0][0])[0] for sparse in (False, True))
    copy_parameters(hand, net)
    trainer = trainer_of(hand, options=SGD)
    for x, y in batches:
        with autograd.record():
            loss = L2(hand(nd.array(x)), nd.array(y)).mean()
        loss.backward()
        if clip:
            gluon.utils.clip_global_norm([p.grad() for p in hand.collect_params().values()], clip)
        trainer.step(1)
    train(net, one_loss_spec(L2), batches, devices, TrainerSpec(".*", "sgd", SGD, clip_norm=clip))
    assert_same_parameters(net, hand)
