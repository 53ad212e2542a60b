"""Weights and normalisers do what they say, over the whole batch and all devices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from multifit import LossSpec, RunState, TaskSpec, TrainerSpec
from multifit.losses import SequenceCELoss

import mxnet as mx  # isort: skip
from mxnet import gluon, nd  # isort: skip
from mxnet.gluon import nn  # isort: skip

CE, BCE = gluon.loss.SoftmaxCrossEntropyLoss(), gluon.loss.SigmoidBinaryCrossEntropyLoss()
SGD = {"learning_rate": 0.05, "momentum": 0.9}
SIZES = [12] * 9 + [7] + [12] * 9 + [1]


def heads(weight: Any, digit: Any = 1.0) -> TaskSpec:
    losses = {"digit": LossSpec(CE, weight=digit), "parity": LossSpec(BCE, weight=weight)}
    return TaskSpec(inputs=["x"], outputs=["digit", "parity"], labels=["digit", "parity"], losses=losses)


@pytest.mark.parametrize("weights", [(1.0, 0.0), (0.0, 3.0), (2, 0.25)])
def test_constants(
    weights: tuple, devices: list, hybridized: bool,
    two_heads: type, data: Any, pair: Any, by_hand: Any, train: Any, same: Any,
) -> None:  # fmt: skip
    batches = data(SIZES)
    hand, ours = pair(two_heads, batches[0][0])
    if hybridized:
        ours.hybridize()

    def objective(net: Any, x: Any, digit: Any, parity: Any) -> Any:
        digits, parities = net(x)
        return weights[0] * CE(digits, digit) + weights[1] * BCE(parities, parity)

    by_hand(hand, [gluon.Trainer(hand.collect_params(), "sgd", SGD)], batches, objective)
    train(ours, heads(weights[1], weights[0]), batches, devices, TrainerSpec(".*", "sgd", SGD))
    same(ours, hand)


def test_functions_of_the_state(
    devices: list, hybridized: bool,
    two_heads: type, data: Any, pair: Any, by_hand: Any, train: Any, same: Any, silent: list,
) -> None:  # fmt: skip
    batches = data(SIZES)
    hand, ours = pair(two_heads, batches[0][0])
    if hybridized:
        ours.hybridize()
    steps = iter(range(40))

    def objective(net: Any, x: Any, digit: Any, parity: Any) -> Any:
        (digits, parities), step = net(x), next(steps)
        return (
            CE(digits, digit) + 0.1 * step * BCE(parities, parity) + 0.01 * (step // 20) * CE(digits, digit)
        )

    by_hand(hand, [gluon.Trainer(hand.collect_params(), "sgd", SGD)], [*batches, *batches], objective)
    seen: list[tuple] = []

    def weight(state: RunState) -> float:
        seen.append((state.epoch, state.batch, state.step))
        return 0.1 * state.step

    spec = heads(weight, lambda state: 1 + 0.01 * state.epoch)
    estimator = train(ours, spec, batches, devices, TrainerSpec(".*", "sgd", SGD))
    estimator.fit(batches, epochs=1, event_handlers=silent)
    assert sorted(set(seen)) == [(i // 20, i % 20, i) for i in range(40)]
    same(ours, hand)


def test_more_weights_than_are_remembered(two_heads: type, data: Any, train: Any) -> None:
    net = two_heads()
    estimator = train(net, heads(lambda state: state.step), data([2] * 300))
    weights = estimator._engine.stages["train"]._scaler
    assert len(weights._vectors) <= 257


def sequences(count: int = 20, size: int = 9, empty: bool = False) -> list[tuple]:
    """Batches (source, target, length, length that may be 0) of varying padded length."""
    rng = np.random.RandomState(2)
    found = []
    for i in range(count):
        steps, n = 3 + i % 4, size if i % 5 else 5
        length = rng.randint(0 if empty else 1, steps + 1, n)
        if empty and i % 6 == 0:
            length[:] = 0
        target = rng.randint(0, 7, (n, steps))
        found.append((rng.randn(n, steps, 4).astype("float32"), target.astype("float32"), length))
    return found


def tagger() -> Any:
    return nn.Dense(7, flatten=False)


NORMALIZERS = {
    "slot": "length",
    "function": lambda slots: slots["length"].sum(),
    "function without a sum": lambda slots: slots["length"].astype("float32"),
    "function to NumPy": lambda slots: slots["length"].asnumpy(),
    "function to either": lambda slots: (
        slots["length"] if slots["length"].context == mx.cpu(0) else tokens(slots)
    ),
}
KINDS = [("slot", "int32", False), ("slot", "uint8", True), *((by, "float32", True) for by in NORMALIZERS)]


def tokens(slots: dict) -> float:
    return float(slots["length"].sum().asscalar())


@pytest.mark.parametrize("by, dtype, empty", KINDS)
def test_a_masked_loss_is_a_mean_over_tokens(
    by: str, empty: bool, dtype: str, devices: list, hybridized: bool, pair: Any, train: Any, same: Any
) -> None:
    batches = [(x, y, length.astype(dtype)) for x, y, length in sequences(empty=empty)]
    hand, ours = pair(tagger, batches[0][0])
    if hybridized:
        ours.hybridize()
    trainer = gluon.Trainer(hand.collect_params(), "sgd", SGD)
    for x, y, length in batches:
        x, y, valid = nd.array(x), nd.array(y), nd.array(length.astype("float32"))
        mask = nd.arange(y.shape[1]).reshape((1, -1)) < valid.reshape((-1, 1))
        with mx.autograd.record():
            token = -nd.pick(nd.log_softmax(hand(x)), y) * mask
            loss = token.sum() / max(float(length.sum()), 1.0)
        loss.backward()
        trainer.step(1)
    declared = LossSpec(SequenceCELoss(), "logits", ["target", "length"], normalize_by=NORMALIZERS[by])
    spec = TaskSpec(inputs=["x"], outputs=["logits"], labels=["target", "length"], losses={"l": declared})
    train(ours, spec, batches, devices, TrainerSpec(".*", "sgd", SGD))
    same(ours, hand)


def test_where_the_normaliser_is_0_nothing_is_learned(
    devices: list, hybridized: bool, pair: Any, by_hand: Any, train: Any, same: Any
) -> None:
    rng, l2 = np.random.RandomState(7), gluon.loss.L2Loss()
    batches = [
        (rng.randn(6, 4).astype("float32"), rng.randn(6, 1).astype("float32"), np.full(6, i % 2, "float32"))
        for i in range(20)
    ]
    hand, ours = pair(lambda: nn.Dense(1), batches[0][0])
    if hybridized:
        ours.hybridize()
    trainer = gluon.Trainer(hand.collect_params(), "sgd", {"learning_rate": 0.1})
    by_hand(hand, [trainer], batches[1::2], lambda net, x, y, valid: l2(net(x), y))
    loss = LossSpec(l2, "out", "y", normalize_by="valid")
    spec = TaskSpec(inputs=["x"], outputs="out", labels=["y", "valid"], losses={"l": loss})
    train(ours, spec, batches, devices, TrainerSpec(".*", "sgd", {"learning_rate": 0.1}))
    same(ours, hand)


def test_every_term_has_its_own_normaliser(
    devices: list, hybridized: bool, pair: Any, train: Any, same: Any
) -> None:
    batches = sequences()
    hand, ours = pair(tagger, batches[0][0])
    if hybridized:
        ours.hybridize()
    l1 = gluon.loss.L1Loss()
    trainer = gluon.Trainer(hand.collect_params(), "sgd", SGD)
    masked = SequenceCELoss()
    for x, y, length in batches:
        x, y, valid = nd.array(x), nd.array(y), nd.array(length)
        with mx.autograd.record():
            logits = hand(x)
            tokens = masked(logits, y, valid).sum() / valid.sum()
            loss = 2 * tokens + 0.3 * l1(logits, nd.one_hot(y, 7)).mean()
        loss.backward()
        trainer.step(1)
    losses = {
        "tokens": LossSpec(masked, "logits", ["y", "length"], weight=2, normalize_by="length"),
        "near": LossSpec(lambda out, y: l1(out, nd.one_hot(y, 7)), "logits", "y", weight=0.3),
    }
    spec = TaskSpec(inputs=["x"], outputs=["logits"], labels=["y", "length"], losses=losses)
    train(ours, spec, batches, devices, TrainerSpec(".*", "sgd", SGD))
    same(ours, hand)


def test_a_normaliser_counts_exactly(train: Any) -> None:
    """Two thousand bytes of 255 neither overflow as bytes nor lose a digit."""
    x, mask = np.ones((2, 3), "float32"), np.full((2, 1000), 255, "uint8")

    def total(out: Any, mask: Any) -> Any:
        return nd.sum(nd.cast(mask, "float32"), axis=1) + 0 * nd.sum(out, axis=1)

    spec = TaskSpec(
        outputs="out", labels=["mask"], losses={"l": LossSpec(total, "out", "mask", normalize_by="mask")}
    )
    estimator = train(nn.Dense(1), spec, [(x, mask)])
    assert estimator.history["train_l"] == [1.0]
