"""Figures of losses are exact means over the epoch, weighted by what each batch was normalised with."""

from typing import Any

import numpy as np
import pytest

from multifit import History, LossSpec, TaskSpec, TrainerSpec
from multifit.gluon.metrics.sums import Accumulator
from multifit.losses import SequenceCELoss
from tests.common.compare import twins
from tests.common.data import digit_batches, regression_batches
from tests.common.grids import pairwise, plain_or_hybrid, two_settings
from tests.common.hand_loop import SILENT, SIZES, train
from tests.common.losses import PARTS, Parts
from tests.common.nets import hybridized
from tests.common.shared_nets import two_heads
from tests.common.specs import BCE, CE, L2, digit_spec, one_loss_spec

import mxnet as mx  # isort: skip
from mxnet import nd  # isort: skip
from mxnet.gluon import nn  # isort: skip

STILL = TrainerSpec(".*", "sgd", {"learning_rate": 0.0})


def assert_figures(
    history: History, expected: dict[str, Any], stage: str = "train", rtol: float = 1e-5
) -> None:
    """Check the figures of every epoch."""
    for name, value in expected.items():
        values = history[f"{stage}_{name}"]
        np.testing.assert_allclose(values, [value] * len(values), rtol=rtol, err_msg=name)


@pairwise("weight", [0.5, 0.0, "function"])
def test_objective_and_terms_of_uneven_batches(weight: Any, devices: list, hybrid: bool) -> None:
    batches, others = digit_batches(SIZES), digit_batches([9, 9, 2], seed=4)
    hand, net = twins(two_heads, batches[0][0])
    number = 0.5 if weight == "function" else weight
    spec = digit_spec(parity=(lambda state: 0.5) if weight == "function" else weight)
    estimator = train(hybridized(net, hybrid), spec, batches, devices, STILL)
    history = estimator.fit(batches, others, epochs=2, event_handlers=SILENT)
    for stage, data in (("train", batches), ("val", others)):
        x, *labels = [nd.array(np.concatenate(column)) for column in zip(*data)]
        digit, parity = (
            loss(out, label).asnumpy().mean() for loss, out, label in zip((CE, BCE), hand(x), labels)
        )
        figures = {"loss": digit + number * parity, "digit": digit, "parity": parity}
        assert_figures(history, figures, stage)
    assert estimator.evaluate(others, event_handlers=SILENT) == pytest.approx(figures, rel=1e-5)


@two_settings
def test_parts(devices: list, hybrid: bool) -> None:
    batches = regression_batches(SIZES)
    hand, net = twins(lambda: nn.Dense(4), batches[0][0])
    spec = one_loss_spec(hybridized(Parts(), hybrid), weight=2, returns=list(PARTS), minimize="sample")
    history = train(hybridized(net, hybrid), spec, batches, devices, STILL).history
    x, y = (np.concatenate(column) for column in zip(*batches))
    errors = (hand(nd.array(x)).asnumpy() - y) ** 2
    mean = errors.mean()
    parts = {"l": mean, "l.mean": mean, "l.sample": mean, "l.all": errors.sum(1).mean(), "loss": 2 * mean}
    assert_figures(history, parts)


@pairwise("case", ["tokens everywhere", "a batch without tokens"])
def test_means_over_tokens(case: str, devices: list, hybrid: bool) -> None:
    random, loss = np.random.RandomState(0), SequenceCELoss()
    batches = []
    for i, n in enumerate(SIZES):
        length = random.randint(1, 6, n) * (0 if case == "a batch without tokens" and i == 1 else 1)
        batches.append((random.randn(n, 5, 3).astype("float32"), random.randint(0, 7, (n, 5)), length))
    hand, net = twins(lambda: nn.Dense(7, flatten=False), batches[0][0])
    terms = {
        "token": LossSpec(loss, "out", ["y", "length"], normalize_by="length"),
        "sequence": LossSpec(loss, "out", ["y", "length"], weight=0.1),
    }
    spec = TaskSpec(inputs=["x"], outputs="out", labels=["y", "length"], losses=terms)
    history = train(hybridized(net, hybrid), spec, batches, devices, STILL).history
    x, y, length = (np.concatenate(column) for column in zip(*batches))
    total = loss(hand(nd.array(x)), nd.array(y), nd.array(length)).asnumpy().sum()
    token, sequence = total / length.sum(), total / len(length)
    assert_figures(history, {"token": token, "sequence": sequence, "loss": token + 0.1 * sequence})


@plain_or_hybrid
def test_a_batch_that_is_normalised_by_nothing_counts_for_nothing(hybrid: bool) -> None:
    """Its objective is 0, whatever its losses are."""
    by = "y" if hybrid else lambda slots: float(slots["y"].sum().asscalar())
    x = np.ones((4, 2), "float32")
    batches = [(x, np.zeros(4, "float32")), (x, np.ones(4, "float32"))]
    hand, net = twins(lambda: nn.Dense(1), x)
    spec = one_loss_spec(lambda out, y: L2(out, nd.ones_like(out) * 3), normalize_by=by)
    history = train(hybridized(net, hybrid), spec, batches, None, STILL).history
    value = (0.5 * (hand(nd.array(x)).asnumpy() - 3) ** 2).mean()
    assert_figures(history, {"l": value, "loss": value})


@two_settings
def test_sums_stay_exact_beyond_what_float32_counts(devices: list, hybrid: bool) -> None:
    big = 2.0**24
    batches = [(np.ones((2, 3), "float32"), np.full(2, value, "float32")) for value in [big, *[1.0] * 11]]
    spec = one_loss_spec(lambda out, y: y + 0 * out.reshape((-1,)))
    history = train(hybridized(nn.Dense(1), hybrid), spec, batches, devices, STILL).history
    assert history["train_l"] == history["train_loss"] == [(big + 11) / 12]


# few numbers wait and are added up 16 at once, many are added at once
@pytest.mark.parametrize("width, count", [(2, 16), (2, 17), (5000, 17)])
def test_an_accumulator_adds_up_batches_and_devices(width: int, count: int) -> None:
    sums, read = Accumulator(), []
    assert sums.read() == 0.0
    for device in (0, 1):
        for i in range(count):
            sums.add(nd.full((width,), 2.0**24 + i, ctx=mx.cpu(device), dtype="float64"))
            read.append(sums.read()[0])  # reading changes nothing
    total = 2 * (count * 2.0**24 + count * (count - 1) / 2)
    np.testing.assert_array_equal(sums.read(), np.full(width, total))
    assert read == sorted(read) and read[-1] == total
    other = Accumulator()
    other.load(sums.state())
    assert Accumulator().read() == 0.0
    np.testing.assert_array_equal(other.read(), np.full(width, total))
