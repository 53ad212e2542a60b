"""Weights and normalizers apply to the whole batch, over all devices."""

from typing import Any

import numpy as np

from multifit import LossSpec, RunState, TaskSpec
from multifit.losses import SequenceCELoss
from tests.common.compare import assert_same_parameters, twins
from tests.common.data import digit_batches, regression_batches
from tests.common.grids import pairwise, two_settings
from tests.common.hand_loop import SILENT, SIZES, assert_trains_as_by_hand, train, train_by_hand, trainer_of
from tests.common.nets import hybridized
from tests.common.shared_nets import two_heads
from tests.common.specs import BCE, CE, L2, digit_spec, one_loss_spec

import mxnet as mx  # isort: skip
from mxnet import gluon, nd  # isort: skip
from mxnet.gluon import nn  # isort: skip


@pairwise("weights", [(0.0, 3.0), (2, 0.25)])
def test_constants(weights: tuple[float, float], devices: list, hybrid: bool) -> None:
    def objective(net: Any, x: Any, digit: Any, parity: Any) -> Any:
        digits, parities = net(x)
        return weights[0] * CE(digits, digit) + weights[1] * BCE(parities, parity)

    assert_trains_as_by_hand(
        two_heads, digit_spec(*weights), digit_batches(SIZES), objective, devices, hybrid
    )


@two_settings
def test_functions_of_the_state(devices: list, hybrid: bool) -> None:
    batches = digit_batches(SIZES)
    count = len(batches)
    hand, net = twins(two_heads, batches[0][0])
    steps = iter(range(2 * count))

    def objective(net: Any, x: Any, digit: Any, parity: Any) -> Any:
        (digits, parities), step = net(x), next(steps)
        return (1 + 0.01 * (step // count)) * CE(digits, digit) + 0.1 * step * BCE(parities, parity)

    train_by_hand(hand, trainer_of(hand), [*batches, *batches], objective)
    seen: list[tuple] = []

    def weight(state: RunState) -> float:
        seen.append((state.epoch, state.batch, state.step))
        return 0.1 * state.step

    spec = digit_spec(lambda state: 1 + 0.01 * state.epoch, weight)
    estimator = train(hybridized(net, hybrid), spec, batches, devices)
    estimator.fit(batches, epochs=1, event_handlers=SILENT)
    assert sorted(set(seen)) == [(i // count, i % count, i) for i in range(2 * count)]
    assert_same_parameters(net, hand)


def sequences(count: int = 8, size: int = 9, empty: bool = False, dtype: str = "float32") -> list[tuple]:
    """Batches (source, target, length, which may be 0) of varying padded length."""
    random = np.random.RandomState(2)
    batches = []
    for i in range(count):
        steps, n = 3 + i % 3 // 2, size if i % 5 else 5
        length = random.randint(0 if empty else 1, steps + 1, n)
        if empty and i % 6 == 0:
            length[:] = 0
        target = random.randint(0, 7, (n, steps))
        source = random.randn(n, steps, 4)
        batches.append((source.astype("float32"), target.astype("float32"), length.astype(dtype)))
    return batches


def tagger() -> Any:
    return nn.Dense(7, flatten=False)


def tokens(slots: dict) -> float:
    return float(slots["length"].sum().asscalar())


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


@pairwise("kind", KINDS)
def test_a_masked_loss_is_a_mean_over_tokens(
    kind: tuple[str, str, bool], devices: list, hybrid: bool
) -> None:
    by, dtype, empty = kind

    def objective(net: Any, x: Any, y: Any, length: Any) -> Any:
        valid = length.astype("float32")
        mask = nd.arange(y.shape[1]).reshape((1, -1)) < valid.reshape((-1, 1))
        token = -nd.pick(nd.log_softmax(net(x)), y) * mask
        return token.sum() / nd.maximum(valid.sum(), 1.0)

    loss = LossSpec(SequenceCELoss(), "logits", ["target", "length"], normalize_by=NORMALIZERS[by])
    spec = TaskSpec(inputs=["x"], outputs=["logits"], labels=["target", "length"], losses={"l": loss})
    batches = sequences(empty=empty, dtype=dtype)
    assert_trains_as_by_hand(tagger, spec, batches, objective, devices, hybrid, by=lambda x: 1)


@two_settings
def test_where_the_normalizer_is_0_nothing_is_learned(devices: list, hybrid: bool) -> None:
    batches = [
        (x, y, np.full(6, i % 2, "float32")) for i, (x, y) in enumerate(regression_batches([6] * 8, 4, (1,)))
    ]
    loss = LossSpec(L2, "out", "y", normalize_by="valid")
    spec = TaskSpec(inputs=["x"], outputs="out", labels=["y", "valid"], losses={"l": loss})
    assert_trains_as_by_hand(
        lambda: nn.Dense(1), spec, batches[1::2], lambda net, x, y, valid: L2(net(x), y), devices, hybrid,
        options={"learning_rate": 0.1}, fed=batches,
    )  # fmt: skip


@two_settings
def test_every_term_has_its_own_normalizer(devices: list, hybrid: bool) -> None:
    l1, masked = gluon.loss.L1Loss(), SequenceCELoss()

    def near(out: Any, y: Any) -> Any:
        return l1(out, nd.one_hot(y, 7))

    def objective(net: Any, x: Any, y: Any, length: Any) -> Any:
        logits = net(x)
        return 2 * masked(logits, y, length).sum() / length.sum() + 0.3 * near(logits, y).mean()

    losses = {
        "tokens": LossSpec(masked, "logits", ["y", "length"], weight=2, normalize_by="length"),
        "near": LossSpec(near, "logits", "y", weight=0.3),
    }
    spec = TaskSpec(inputs=["x"], outputs=["logits"], labels=["y", "length"], losses=losses)
    assert_trains_as_by_hand(tagger, spec, sequences(), objective, devices, hybrid, by=lambda x: 1)


def test_a_normalizer_counts_exactly() -> None:
    """Two thousand bytes of 255 neither overflow as bytes nor lose a digit."""

    def total(out: Any, mask: Any) -> Any:
        return nd.sum(nd.cast(mask, "float32"), axis=1) + 0 * nd.sum(out, axis=1)

    batch = np.ones((2, 3), "float32"), np.full((2, 1000), 255, "uint8")
    estimator = train(nn.Dense(1), one_loss_spec(total, normalize_by="y"), [batch])
    assert estimator.history["train_l"] == [1.0]


def test_more_weights_than_are_remembered() -> None:
    estimator = train(two_heads(), digit_spec(parity=lambda state: state.step), digit_batches([2] * 262))
    assert len(estimator._session.stages["train"].weights._constants) <= 257
