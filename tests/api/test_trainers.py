"""estimator.trainer, estimator.trainers, estimator.learning_rates()."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

from multifit import MultiEstimator, TrainerError, TrainerSpec
from tests.common.compare import snapshot
from tests.common.nets import two_heads
from tests.common.specs import two_head_spec

SEVERAL = {
    "body/all": TrainerSpec("body.*", "adam", {"learning_rate": 0.01}),
    "heads": TrainerSpec("(digit|size).*", "sgd", {"learning_rate": 0.1, "momentum": 0.9}),
}


def test_one_trainer() -> None:
    estimator = MultiEstimator(two_heads(), two_head_spec(), TrainerSpec(".*", "sgd", {"learning_rate": 0.5}))
    assert list(estimator.trainers) == ["trainer"]
    assert estimator.trainer is estimator.trainers["trainer"]
    assert repr(estimator.trainers) == "Trainers(trainer)"
    with pytest.raises(KeyError, match='no trainer "trainr" .did you mean "trainer"'):
        estimator.trainers["trainr"]
    assert estimator.learning_rates() == {"lr": 0.5}


def test_a_trainer_of_the_user(batches: Any) -> None:
    net = two_heads()
    net.initialize()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.5})
    estimator = MultiEstimator(net, two_head_spec(), trainer)
    assert estimator.trainer.trainer is trainer
    history = estimator.fit(batches, epochs=1)
    trainer.set_learning_rate(0.25)
    estimator.fit(batches, epochs=1)
    assert (history["lr"], estimator.history["lr"]) == ([0.5], [0.25])
    assert MultiEstimator(net, two_head_spec(), estimator.trainer).trainer.trainer is trainer


def test_several_trainers(batches: Any) -> None:
    estimator = MultiEstimator(two_heads(), two_head_spec(), SEVERAL)
    history = estimator.fit(batches, epochs=1)
    assert dict(estimator.trainers)["heads"].learning_rate == 0.1
    assert len(estimator.trainers) == 2
    assert (history["lr_body/all"], history["lr_heads"]) == ([0.01], [0.1])
    assert estimator.trainer.learning_rate == 0.01  # the first stands for all
    assert isinstance(estimator.trainer.optimizer, mx.optimizer.Adam)
    with pytest.raises(AttributeError):
        estimator.trainer.nonsense  # noqa: B018


def test_the_states_of_several_trainers_are_saved_and_loaded(batches: Any, tmp_path: Path) -> None:
    net = two_heads()
    estimator = MultiEstimator(net, two_head_spec(), SEVERAL)
    estimator.fit(batches, epochs=2)
    estimator.trainer.save_states(str(tmp_path / "states"))
    net.save_parameters(str(tmp_path / "params"))
    estimator.fit(batches, epochs=1)
    expected = list(snapshot(net).values())

    twin = two_heads()
    other = MultiEstimator(twin, two_head_spec(), SEVERAL)
    twin.load_parameters(str(tmp_path / "params"))
    other.trainer.load_states(str(tmp_path / "states"))
    other.fit(batches, epochs=1)
    for value, before in zip(snapshot(twin).values(), expected):
        np.testing.assert_allclose(value, before, rtol=1e-5, atol=1e-7)


def test_trainers_that_cannot_be_built_are_an_error_when_they_are_read() -> None:
    estimator = MultiEstimator(two_heads(), two_head_spec(), TrainerSpec("bodi.*"))
    for read in (lambda: estimator.trainers, lambda: estimator.trainer):
        with pytest.raises(TrainerError, match="bodi"):
            read()
    assert estimator.learning_rates() == {}  # handlers read it before the check
