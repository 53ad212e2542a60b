"""Nets of float64 train as in a hand-written loop, to float64's precision."""

from typing import Any

import numpy as np
import pytest

from multifit import LossSpec, MetricSpec, MultiEstimator, TrainerSpec
from multifit.gluon.graph import lower as precisions
from tests.common.compare import assert_same_parameters, twins
from tests.common.data import digit_batches
from tests.common.grids import two_settings
from tests.common.hand_loop import SGD, SILENT, train_by_hand, trainer_of
from tests.common.nets import hybridized
from tests.common.shared_nets import two_heads
from tests.common.specs import BCE, CE, digit_spec

import mxnet as mx  # isort: skip
from mxnet import nd  # isort: skip

METRICS = {
    "accuracy": MetricSpec(mx.metric.Accuracy(), "digit", "digit"),
    "top": MetricSpec(mx.metric.TopKAccuracy(2), "digit", "digit"),
    "rmse": MetricSpec(mx.metric.RMSE(), "parity", "parity"),
    "error": MetricSpec(lambda y, out: float(np.abs(out[:, 0] - y).mean()), "parity", "parity"),
}


def make() -> Any:
    net = two_heads()
    net.cast("float64")
    return net


@two_settings
def test_equals_the_hand_written_loop(devices: list, hybrid: bool) -> None:
    def scalar(out: Any, y: Any) -> Any:
        return nd.mean(nd.square(out.reshape(-1) - y))

    def objective(net: Any, x: Any, digit: Any, parity: Any) -> Any:
        digits, parities = net(x)
        return CE(digits, digit) + 0.3 * BCE(parities, parity) + 0.7 * scalar(parities, parity)

    # Gluon's step() divides by the size in float32, which is exact for powers of two
    batches = digit_batches([8, 8, 8, 4, 8, 1])
    hand, net = twins(make, batches[0][0].astype("float64"))
    doubles = [tuple(array.astype("float64") for array in batch) for batch in batches]
    train_by_hand(hand, trainer_of(hand), doubles, objective)
    scalars = LossSpec(scalar, "parity", "parity", 0.7)
    losses = {"digit": CE, "parity": LossSpec(BCE, weight=0.3), "scalar": scalars}
    spec, trainer = digit_spec(losses=losses, metrics=METRICS), TrainerSpec(".*", "sgd", SGD)
    estimator = MultiEstimator(hybridized(net, hybrid), spec, trainer, devices)
    estimator.fit(batches, batches, epochs=1, event_handlers=SILENT)
    assert_same_parameters(net, hand, 1e-13, 1e-13)
    assert net.body.weight.data(devices[0]).dtype == np.float64
    figures = estimator.history.last
    assert {"train_accuracy", "val_rmse", "val_error"} < set(figures)
    assert np.isfinite(list(figures.values())).all()
    assert estimator.predict(batches[0][0])["digit"].dtype == np.float64


def test_bfloat16_needs_float32_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precisions, "cpu_supports_bfloat16", lambda: True)
    estimator = MultiEstimator(hybridized(make()), digit_spec(), precision="bfloat16")
    with pytest.raises(ValueError, match='precision is "bfloat16".*parameters are float64; call net.cast'):
        estimator.check(digit_batches([8]))
