"""Gradients that only some batches or devices have, that add up, or that are sparse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from multifit import LossSpec, TaskSpec, TrainerSpec

import mxnet as mx  # isort: skip
from mxnet import autograd, gluon, nd  # isort: skip
from mxnet.gluon import nn  # isort: skip

CE = gluon.loss.SoftmaxCrossEntropyLoss()
SGD = {"learning_rate": 0.05, "momentum": 0.9, "wd": 1e-3}


class Branching(gluon.Block):
    """Takes a branch that depends on the batch: a parameter may get a gradient on one device only."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Dense(3, in_units=5), nn.Dense(3, in_units=5)

    def forward(self, x: Any) -> Any:
        return self.left(x) if x[0, 0].asscalar() > 0 else self.right(x)


def signs(pattern: list[list[int]], width: int = 5) -> list[tuple]:
    """Batches of two halves; the sign of a half's first number chooses its branch."""
    rng = np.random.RandomState(6)
    found = []
    for left, right in pattern:
        x = rng.randn(8, width).astype("float32")
        x[:4, 0], x[4:, 0] = left, right
        found.append((x, rng.randn(8, 3).astype("float32")))
    return found


@pytest.mark.parametrize("on_kvstore", [True, False])
def test_a_gradient_that_no_device_or_only_one_has_is_not_an_old_one(
    on_kvstore: bool, pair: Any, train: Any, same: Any
) -> None:
    pattern = [[1, 1], [1, -1], [-1, -1], [1, 1], [-1, 1]] * 4
    batches = signs(pattern)
    contexts, l2 = [mx.cpu(0), mx.cpu(1)], gluon.loss.L2Loss()
    hand, ours = pair(Branching, np.ones((2, 5), "float32"))
    ours.collect_params().reset_ctx(contexts)
    trainer = gluon.Trainer(hand.collect_params(), "sgd", {"learning_rate": 0.1})
    for x, y in batches:
        x, y = nd.array(x), nd.array(y)
        with autograd.record():
            loss = [l2(hand(x[half]), y[half]) for half in (slice(0, 4), slice(4, 8))]
        autograd.backward(loss)  # of both at once: each gradient is written once, as their sum
        trainer.step(8, ignore_stale_grad=True)
    mine = gluon.Trainer(ours.collect_params(), "sgd", {"learning_rate": 0.1}, update_on_kvstore=on_kvstore)
    spec = TaskSpec(outputs="out", labels=["y"], losses={"l": LossSpec(l2, "out", "y")})
    train(ours, spec, batches, contexts, mine)
    same(ours, hand)


def test_a_gradient_that_was_not_reached_does_not_count_for_the_norm(
    pair: Any, train: Any, same: Any
) -> None:
    batches, l2 = signs([[1, 1], [-1, -1]] * 10), gluon.loss.L2Loss()
    hand, ours = pair(Branching, np.ones((2, 5), "float32"))
    trainer = gluon.Trainer(hand.collect_params(), "sgd", {"learning_rate": 0.1})
    for x, y in batches:
        with autograd.record():
            loss = l2(hand(nd.array(x)), nd.array(y)).mean()
        loss.backward()
        used = hand.left if x[0, 0] > 0 else hand.right
        gluon.utils.clip_global_norm([p.grad() for p in used.collect_params().values()], 0.3)
        trainer.step(1, ignore_stale_grad=True)
    spec = TaskSpec(outputs="out", labels=["y"], losses={"l": LossSpec(l2, "out", "y")})
    train(ours, spec, batches, None, TrainerSpec(".*", "sgd", {"learning_rate": 0.1}, clip_norm=0.3))
    same(ours, hand)


def test_gradients_that_add_up_begin_anew_each_step(
    devices: list,
    hybridized: bool,
    two_heads: type,
    data: Any,
    pair: Any,
    by_hand: Any,
    train: Any,
    same: Any,
) -> None:
    batches = data([16] * 18 + [3, 1])
    hand, ours = pair(two_heads, batches[0][0])
    ours.collect_params().setattr("grad_req", "add")
    if hybridized:
        ours.hybridize()
    trainer = gluon.Trainer(hand.collect_params(), "sgd", SGD)
    by_hand(hand, [trainer], batches, lambda net, x, digit, parity: CE(net(x)[0], digit))
    spec = TaskSpec(
        inputs=["x"], outputs=["digit", ...], labels=["digit", "parity"], losses={"digit": CE},
        unused=["labels.parity"],
    )  # fmt: skip
    train(ours, spec, batches, devices, TrainerSpec(".*", "sgd", SGD))
    same(ours, hand)


@pytest.mark.parametrize("clip", [None, 0.1])
def test_sparse_gradients(clip: Any, devices: list, pair: Any, train: Any, same: Any) -> None:
    rng = np.random.RandomState(8)
    batches = [
        (rng.randint(0, 9, (n, 3)).astype("float32"), rng.randn(n, 2).astype("float32"))
        for n in [6] * 19 + [1]
    ]

    def make(sparse: bool) -> Any:
        net = nn.HybridSequential()
        net.add(nn.Embedding(9, 4, sparse_grad=sparse), nn.Dense(2))
        return net

    l2, sgd = gluon.loss.L2Loss(), {"learning_rate": 0.1}
    hand, ours = pair(lambda: make(False), batches[0][0])[0], pair(lambda: make(True), batches[0][0])[1]
    for name, parameter in ours._collect_params_with_prefix().items():
        parameter.set_data(hand._collect_params_with_prefix()[name].data())
    trainer = gluon.Trainer(hand.collect_params(), "sgd", sgd)
    for x, y in batches:
        with autograd.record():
            loss = l2(hand(nd.array(x)), nd.array(y)).mean()
        loss.backward()
        if clip:
            gluon.utils.clip_global_norm([p.grad() for p in hand.collect_params().values()], clip)
        trainer.step(1)
    spec = TaskSpec(outputs="out", labels=["y"], losses={"l": LossSpec(l2, "out", "y")})
    train(ours, spec, batches, devices, TrainerSpec(".*", "sgd", sgd, clip_norm=clip))
    same(ours, hand)
