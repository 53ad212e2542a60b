"""TerminateOnNaN."""

import logging
from typing import Any

import numpy as np
import pytest

from multifit import Every, LossSpec, MultiEstimator, TrainerSpec
from multifit.handlers import TerminateOnNaN
from tests.common.compare import snapshot
from tests.common.grids import ONE, TWO
from tests.common.nets import mlp
from tests.common.specs import L2

from mxnet.gluon import nn  # isort: skip

from .training import On, fit


def batches(bad: int | None = None, row: int = 1) -> list[Any]:
    """Return six batches of six samples, with NaN in one row of a batch's inputs."""
    random = np.random.RandomState(2)
    data = [(random.randn(6, 4).astype("float32"), random.randn(6, 2).astype("float32")) for _ in range(6)]
    if bad is not None:
        data[bad][0][row, 2] = np.nan
    return data


def run(data: Any, *handlers: Any, devices: Any = ONE) -> tuple[MultiEstimator, list[Any]]:
    """Return the estimator, and all parameters on all devices after each batch."""
    after: list[Any] = []
    losses = {
        "size": LossSpec(L2, "y", "label"),
        "other": LossSpec(lambda out, label: (label**2 + out.zeros_like()).mean(axis=1), "y", "label"),
    }
    trace = On(batch_end=lambda estimator: after.append(snapshot(estimator.net)))
    trainers = TrainerSpec(".*", "adam", {"learning_rate": 0.05})
    net = mlp(2, devices, norm=True)
    options = {"net": net, "losses": losses, "trainers": trainers, "data": data}
    return fit([*handlers, trace], devices, **options), after


@pytest.mark.parametrize(("devices", "row"), [(ONE, 1), (TWO, 5)], ids=str)
def test_it_stops_before_the_update(devices: Any, row: int, caplog: Any) -> None:
    with caplog.at_level(logging.ERROR, logger="multifit"):
        estimator, after = run(batches(3, row), TerminateOnNaN(), devices=devices)
    assert estimator.state.stop_reason == "size is NaN (epoch 1, batch 4)"
    assert [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR] == [
        "epoch 1, batch 4: size is NaN; the parameters are those from before this batch"
    ]
    finite = run(batches(), TerminateOnNaN(), devices=devices)  # is not changed
    plain = run(batches(), devices=devices)[1]
    np.testing.assert_equal(finite[1], plain)
    assert finite[0].state.stop_reason == "2 epochs" and len(after) == 4
    np.testing.assert_equal([after[2], after[3]], [plain[2], plain[2]])


@pytest.mark.parametrize("bad", [2, 3])  # what the third batch breaks is seen in the fourth
def test_every_few_batches_are_checked_and_restored_as_a_whole(bad: int) -> None:
    own, its = run(batches(bad), TerminateOnNaN(2))
    wrapped, theirs = run(batches(bad), Every(2, "batch", TerminateOnNaN()))
    assert "(epoch 1, batch 4)" in own.state.stop_reason
    assert wrapped.state.stop_reason == own.state.stop_reason
    np.testing.assert_equal(theirs, its)


def test_all_losses_are_named_as_nan_or_infinite() -> None:
    data = batches()
    data[1][1][0, 0] = np.inf
    assert run(data, TerminateOnNaN())[0].state.stop_reason == (
        "size is infinite, other is infinite (epoch 1, batch 2)"
    )


def test_gradients_are_checked_behind_finite_losses() -> None:
    """A relu hides NaN in the input from the loss, and not from the weights."""
    net = nn.HybridSequential()
    net.add(nn.Dense(5, "relu", in_units=4), nn.Dense(2, in_units=5))
    net.initialize(ctx=TWO)
    estimator = fit(
        TerminateOnNaN(), TWO, net=net, losses={"l": LossSpec(L2, "y", "label")}, data=batches(3, 5)
    )
    assert estimator.state.stop_reason == "the gradient of 0.weight is NaN (epoch 1, batch 4)"
    assert all(np.isfinite(array).all() for array in snapshot(net).values())
