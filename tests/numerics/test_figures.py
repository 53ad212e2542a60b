"""Figures of losses are exact means over the epoch, weighted by what each batch was normalised with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from multifit import LossSpec, TaskSpec, TrainerSpec
from multifit.gluon.metrics.accumulators import Accumulator, ScalarSum
from multifit.gluon.metrics.metric_sums import MetricSums
from multifit.losses import SequenceCELoss

import mxnet as mx  # isort: skip
from mxnet import gluon, nd  # isort: skip
from mxnet.gluon import nn  # isort: skip

CE, BCE = gluon.loss.SoftmaxCrossEntropyLoss(), gluon.loss.SigmoidBinaryCrossEntropyLoss()
SIZES = [12, 12, 7, 1]
STILL = TrainerSpec(".*", "sgd", {"learning_rate": 0.0})


def losses_of(net: Any, batches: list[tuple]) -> tuple[np.ndarray, np.ndarray]:
    """The losses of each sample of all batches."""
    x, digit, parity = [nd.array(np.concatenate(column)) for column in zip(*batches)]
    digits, parities = net(x)
    return CE(digits, digit).asnumpy(), BCE(parities, parity).asnumpy()


@pytest.mark.parametrize("weight", [0.5, 0.0, lambda state: 0.5], ids=["constant", "zero", "function"])
def test_objective_and_terms_of_uneven_batches(
    weight: Any,
    devices: list,
    hybridized: bool,
    two_heads: type,
    data: Any,
    pair: Any,
    train: Any,
    silent: list,
) -> None:
    batches, others = data(SIZES), data([9, 9, 2], seed=4)
    hand, ours = pair(two_heads, batches[0][0])
    if hybridized:
        ours.hybridize()
    losses = {"digit": CE, "parity": LossSpec(BCE, weight=weight)}
    spec = TaskSpec(inputs=["x"], outputs=["digit", "parity"], labels=["digit", "parity"], losses=losses)
    estimator = train(ours, spec, batches, devices, STILL)
    history = estimator.fit(batches, others, epochs=2, event_handlers=silent)
    number = weight(None) if callable(weight) else weight
    for prefix, seen in (("train", batches), ("val", others)):
        digit, parity = (loss.mean() for loss in losses_of(hand, seen))
        figures = {"loss": digit + number * parity, "digit": digit, "parity": parity}
        for name, value in figures.items():
            np.testing.assert_allclose(history[f"{prefix}_{name}"], [value, value], rtol=1e-5)
    assert estimator.evaluate(others, event_handlers=silent) == pytest.approx(figures, rel=1e-5)


def test_figures_of_a_net_that_moves(
    devices: list, hybridized: bool, two_heads: type, data: Any, pair: Any, by_hand: Any, train: Any
) -> None:
    batches = data(SIZES * 5)
    hand, ours = pair(two_heads, batches[0][0])
    if hybridized:
        ours.hybridize()
    sums = np.zeros(2)

    def objective(net: Any, x: Any, digit: Any, parity: Any) -> Any:
        digits, parities = net(x)
        values = CE(digits, digit), BCE(parities, parity)
        sums[:] += [float(value.sum().asscalar()) for value in values]
        return values[0] + 0.5 * values[1]

    sgd = {"learning_rate": 0.05}
    by_hand(hand, [gluon.Trainer(hand.collect_params(), "sgd", sgd)], batches, objective)
    losses = {"digit": CE, "parity": LossSpec(BCE, weight=0.5)}
    spec = TaskSpec(inputs=["x"], outputs=["digit", "parity"], labels=["digit", "parity"], losses=losses)
    history = train(ours, spec, batches, devices, TrainerSpec(".*", "sgd", sgd)).history
    digit, parity = sums / sum(SIZES * 5)
    np.testing.assert_allclose(history["train_digit"], [digit], rtol=1e-4)
    np.testing.assert_allclose(history["train_parity"], [parity], rtol=1e-4)
    np.testing.assert_allclose(history["train_loss"], [digit + 0.5 * parity], rtol=1e-4)


class Parts(gluon.HybridBlock):
    """A loss that returns a scalar, (N,) and (N, T)."""

    def hybrid_forward(self, F: Any, out: Any, y: Any) -> Any:
        error = F.square(out - y)
        return F.mean(error), F.mean(error, axis=0, exclude=True), error


def test_parts(devices: list, hybridized: bool, pair: Any, train: Any, silent: list) -> None:
    rng = np.random.RandomState(0)
    batches = [(rng.randn(n, 6).astype("float32"), rng.randn(n, 4).astype("float32")) for n in SIZES]
    hand, ours = pair(lambda: nn.Dense(4), batches[0][0])
    loss = Parts()
    if hybridized:
        ours.hybridize()
        loss.hybridize()
    declared = LossSpec(loss, "out", "y", weight=2, returns=["mean", "sample", "all"], minimize="sample")
    spec = TaskSpec(outputs="out", labels=["y"], losses={"l": declared})
    history = train(ours, spec, batches, devices, STILL).history
    x, y = (np.concatenate(column) for column in zip(*batches))
    errors = (hand(nd.array(x)).asnumpy() - y) ** 2
    means = {
        "l": errors.mean(),
        "l.mean": errors.mean(),
        "l.sample": errors.mean(),
        "l.all": errors.sum(1).mean(),
    }
    for name, value in {**means, "loss": 2 * errors.mean()}.items():
        np.testing.assert_allclose(history[f"train_{name}"], [value], rtol=1e-5)


@pytest.mark.parametrize("empty", [False, True], ids=["tokens everywhere", "a batch without tokens"])
def test_means_over_tokens(empty: bool, devices: list, hybridized: bool, pair: Any, train: Any) -> None:
    rng, loss = np.random.RandomState(0), SequenceCELoss()
    batches = []
    for i, n in enumerate(SIZES):
        length = rng.randint(1, 6, n) * (0 if empty and i == 1 else 1)
        batches.append((rng.randn(n, 5, 3).astype("float32"), rng.randint(0, 7, (n, 5)), length))
    hand, ours = pair(lambda: nn.Dense(7, flatten=False), batches[0][0])
    if hybridized:
        ours.hybridize()
    terms = {
        "token": LossSpec(loss, "out", ["y", "length"], normalize_by="length"),
        "sequence": LossSpec(loss, "out", ["y", "length"], weight=0.1),
    }
    spec = TaskSpec(inputs=["x"], outputs="out", labels=["y", "length"], losses=terms)
    history = train(ours, spec, batches, devices, STILL).history
    x, y, length = (np.concatenate(column) for column in zip(*batches))
    total = loss(hand(nd.array(x)), nd.array(y), nd.array(length)).asnumpy().sum()
    token, sequence = total / length.sum(), total / len(length)
    expected = {"token": token, "sequence": sequence, "loss": token + 0.1 * sequence}
    for name, value in expected.items():
        np.testing.assert_allclose(history[f"train_{name}"], [value], rtol=1e-5)


@pytest.mark.parametrize(
    "by", ["y", lambda slots: float(slots["y"].sum().asscalar())], ids=["slot", "number"]
)
def test_a_batch_that_is_normalised_by_nothing_counts_for_nothing(
    by: Any, hybridized: bool, pair: Any, train: Any
) -> None:
    """Its objective is 0, whatever its losses are."""
    x = np.ones((4, 2), "float32")
    batches = [(x, np.zeros(4, "float32")), (x, np.ones(4, "float32"))]
    hand, ours = pair(lambda: nn.Dense(1), x)
    if hybridized:
        ours.hybridize()
    loss = gluon.loss.L2Loss()
    declared = LossSpec(lambda out, y: loss(out, nd.ones_like(out) * 3), "out", "y", normalize_by=by)
    history = train(
        ours, TaskSpec(outputs="out", labels=["y"], losses={"l": declared}), batches, None, STILL
    ).history
    out = hand(nd.array(x)).asnumpy()
    np.testing.assert_allclose(history["train_l"], [(0.5 * (out - 3) ** 2).mean()], rtol=1e-5)
    np.testing.assert_allclose(history["train_loss"], history["train_l"])


def test_a_weight_that_changes(devices: list, hybridized: bool, pair: Any, train: Any) -> None:
    rng = np.random.RandomState(0)
    batches = [(rng.randn(n, 2).astype("float32"), rng.randn(n, 1).astype("float32")) for n in SIZES]
    hand, ours = pair(lambda: nn.Dense(1), batches[0][0])
    if hybridized:
        ours.hybridize()
    l2 = gluon.loss.L2Loss()
    spec = TaskSpec(
        outputs="out", labels=["y"], losses={"l": LossSpec(l2, "out", "y", weight=lambda s: s.batch)}
    )
    history = train(ours, spec, batches, devices, STILL).history
    sums = [float(l2(hand(nd.array(x)), nd.array(y)).sum().asscalar()) for x, y in batches]
    np.testing.assert_allclose(history["train_l"], [sum(sums) / sum(SIZES)], rtol=1e-5)
    weighted = sum(i * value for i, value in enumerate(sums))
    np.testing.assert_allclose(history["train_loss"], [weighted / sum(SIZES)], rtol=1e-5)


def test_sums_stay_exact_beyond_what_float32_counts(devices: list, hybridized: bool, train: Any) -> None:
    big = 2.0**24
    batches = [(np.ones((2, 3), "float32"), np.full(2, value, "float32")) for value in [big, *[1.0] * 11]]
    net = nn.Dense(1)
    if hybridized:
        net.hybridize()
    spec = TaskSpec(
        outputs="out",
        labels=["y"],
        losses={"l": LossSpec(lambda out, y: y + 0 * out.reshape((-1,)), "out", "y")},
    )
    history = train(net, spec, batches, devices, STILL).history
    assert history["train_l"] == [(big + 11) / 12]
    assert history["train_loss"] == history["train_l"]


@pytest.mark.parametrize("width", [2, 5000], ids=["many at once", "each at once"])
@pytest.mark.parametrize("count", [1, 16, 17, 40])
def test_an_accumulator_adds_up_batches_and_devices(width: int, count: int) -> None:
    sums, read = Accumulator(), []
    assert sums.read() == 0.0
    for device in (0, 1):
        for i in range(count):
            sums.add(nd.full((width,), 2.0**24 + i, ctx=mx.cpu(device), dtype="float64"))
            read.append(sums.read()[0])  # who reads meanwhile changes nothing
    total = 2 * (count * 2.0**24 + count * (count - 1) / 2)
    np.testing.assert_array_equal(sums.read(), np.full(width, total))
    assert read == sorted(read) and read[-1] == total
    other = Accumulator()
    other.load(sums.state())
    sums.clear()
    assert sums.read() == 0.0
    np.testing.assert_array_equal(other.read(), np.full(width, total))


def test_a_total_takes_numbers_and_arrays() -> None:
    total = ScalarSum()
    assert total.read() == 0.0
    total.add(1)
    total.add(nd.array([2.0**24]))
    total.add(nd.array([1.0]))
    total.add(nd.array([2.0], ctx=mx.cpu(1)))
    assert total.read() == 2.0**24 + 4


def test_a_tally_without_terms_has_no_objective() -> None:
    assert MetricSums([]).loss_figures({}) == {}
