"""A net that was cast after a fit is refused while the optimizer keeps numbers of the dtype before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from multifit import MultiEstimator, TrainerError, TrainerSpec
from tests.common.compare import assert_unchanged, snapshot

from mxnet import gluon  # isort: skip

X = np.random.RandomState(0).randn(8, 4).astype("float32")
BATCH = X, (X[:, 0] > 0).astype("float32")


def trained(optimizer: str, **options: float) -> MultiEstimator:
    net = gluon.nn.Dense(2)
    net.hybridize()
    trainers = {"mine": TrainerSpec(".*", optimizer, options)}
    estimator = MultiEstimator(net, gluon.loss.SoftmaxCrossEntropyLoss(), trainers)
    estimator.fit([BATCH], epochs=1, event_handlers=[])
    net.cast("float64")
    return estimator


@pytest.mark.parametrize("options", [{"optimizer": "adam"}, {"optimizer": "nag", "momentum": 0.9}], ids=str)
def test_states_of_another_dtype(options: dict[str, Any]) -> None:
    estimator = trained(**options)
    before = snapshot(estimator.net)
    message = r'trainers\["mine"\]: its optimizer keeps float32 numbers for float64 parameters.*new estimator'
    with pytest.raises(TrainerError, match=message):
        estimator.fit([BATCH], epochs=1, event_handlers=[])
    assert_unchanged(estimator.net, before)


def test_an_optimizer_without_a_state() -> None:
    history = trained("sgd").fit([BATCH], epochs=2, event_handlers=[])
    assert history["train_loss"][1] < history["train_loss"][0]
