"""estimator.trainers, estimator.learning_rates()."""

from typing import Any

import pytest
from mxnet import gluon

from multifit import MultiEstimator, TrainerError, TrainerSpec
from tests.common.nets import two_heads
from tests.common.specs import two_head_spec

SEVERAL = {
    "body/all": TrainerSpec("body.*", "adam", {"learning_rate": 0.01}),
    "heads": TrainerSpec("(digit|size).*", "sgd", {"learning_rate": 0.1, "momentum": 0.9}),
}


def test_one_trainer() -> None:
    estimator = MultiEstimator(two_heads(), two_head_spec(), TrainerSpec(".*", "sgd", {"learning_rate": 0.5}))
    assert list(estimator.trainers) == ["trainer"]
    assert repr(estimator.trainers) == "Trainers(trainer)"
    with pytest.raises(KeyError, match='no trainer "trainr" .did you mean "trainer"'):
        estimator.trainers["trainr"]
    assert estimator.learning_rates() == {"lr": 0.5}


def test_a_trainer_of_the_user(batches: Any) -> None:
    net = two_heads()
    net.initialize()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.5})
    estimator = MultiEstimator(net, two_head_spec(), trainer)
    assert estimator.trainers["trainer"].trainer is trainer
    history = estimator.fit(batches, epochs=1)
    trainer.set_learning_rate(0.25)
    estimator.fit(batches, epochs=1)
    assert (history["lr"], estimator.history["lr"]) == ([0.5], [0.25])


def test_several_trainers(batches: Any) -> None:
    estimator = MultiEstimator(two_heads(), two_head_spec(), SEVERAL)
    history = estimator.fit(batches, epochs=1)
    assert dict(estimator.trainers)["heads"].learning_rate == 0.1
    assert len(estimator.trainers) == 2
    assert (history["lr_body/all"], history["lr_heads"]) == ([0.01], [0.1])


def test_trainers_that_cannot_be_built_are_an_error_when_they_are_read() -> None:
    estimator = MultiEstimator(two_heads(), two_head_spec(), TrainerSpec("bodi.*"))
    with pytest.raises(TrainerError, match="bodi"):
        estimator.trainers  # noqa: B018
    assert estimator.learning_rates() == {}  # handlers read it before the check
