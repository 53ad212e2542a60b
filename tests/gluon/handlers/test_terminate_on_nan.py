"""TerminateOnNaN."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from multifit import LossSpec, MultiEstimator, TaskSpec, TrainerSpec
from multifit.gluon.handlers import TerminateOnNaN

import mxnet as mx  # isort: skip
from mxnet import gluon
from mxnet.gluon import nn

from .training import DEVICES


def batches(bad: int | None, value: float = np.nan, row: int = 1) -> list[Any]:
    random = np.random.RandomState(2)
    data = [(random.randn(6, 4).astype("float32"), random.randn(6, 2).astype("float32")) for _ in range(6)]
    if bad is not None:
        data[bad][0][row, 2] = value
    return data


class Trace:
    """Copies all parameters, on all devices, after each batch, in order."""

    def __init__(self) -> None:
        self.after: list[list[np.ndarray]] = []

    def batch_end(self, estimator: Any) -> None:
        parameters = estimator.net.collect_params().values()
        self.after.append([array.asnumpy() for p in parameters for array in p.list_data()])


def fit(handlers: Any, data: Any, devices: int = 1, epochs: int = 2) -> MultiEstimator:
    mx.random.seed(3)
    net = nn.HybridSequential()
    net.add(nn.Dense(5, in_units=4), nn.BatchNorm(in_channels=5), nn.Dense(2, in_units=5))
    net.initialize(mx.init.Xavier())
    net.hybridize()
    losses = {
        "size": LossSpec(gluon.loss.L2Loss(), "y", "truth"),
        "other": LossSpec(lambda out, truth: (truth**2 + out.zeros_like()).mean(axis=1), "y", "truth"),
    }
    spec = TaskSpec(["y"], ["truth"], losses)
    trainer = TrainerSpec(".*", "adam", {"learning_rate": 0.05})
    estimator = MultiEstimator(net, spec, trainer, DEVICES[devices])
    estimator.fit(data, epochs=epochs, event_handlers=handlers)
    return estimator


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("row", [0, 5])
def test_it_stops_before_the_update(devices: int, row: int, caplog: Any) -> None:
    trace, plain = Trace(), Trace()
    with caplog.at_level(logging.ERROR, logger="multifit"):
        estimator = fit([TerminateOnNaN(), trace], batches(3, row=row), devices)
    fit(plain, batches(None), devices)
    assert estimator.state.stop_reason == "size is NaN (epoch 1, batch 4)"
    assert [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR] == [
        "epoch 1, batch 4: size is NaN; the parameters are those from before this batch"
    ]
    assert len(trace.after) == 4
    for found, expected in ((trace.after[3], plain.after[2]), (trace.after[2], plain.after[2])):
        for one, other in zip(found, expected):
            np.testing.assert_array_equal(one, other)


def test_all_losses_are_named_as_nan_or_infinite() -> None:
    data = batches(None)
    data[1][1][0, 0] = np.inf
    assert (
        fit(TerminateOnNaN(), data).state.stop_reason
        == "size is infinite, other is infinite (epoch 1, batch 2)"
    )


def test_a_run_with_finite_losses_is_not_changed() -> None:
    guarded, plain = Trace(), Trace()
    assert fit([TerminateOnNaN(), guarded], batches(None)).state.stop_reason == "2 epochs"
    fit(plain, batches(None))
    for one, other in zip(guarded.after[-1], plain.after[-1]):
        np.testing.assert_array_equal(one, other)


def test_it_checks_every_nth_batch() -> None:
    class Loss:
        """A loss that says when it is read."""

        reads = 0

        def asnumpy(self) -> Any:
            Loss.reads += 1
            return np.ones(3)

    class Standing:
        from multifit.state import RunState

        state = RunState()
        parameters: dict[str, Any] = {}

    handler = TerminateOnNaN(every=3)
    for _ in range(7):
        handler.batch_begin(Standing)
        assert handler.hold_update(Standing, loss={"l": [Loss(), Loss()]}) is False
        Standing.state.step += 1
    assert Loss.reads == 4


def test_an_invalid_interval_is_an_error() -> None:
    with pytest.raises(ValueError, match="TerminateOnNaN: every is 0; valid is a whole number of at least 1"):
        TerminateOnNaN(0)
