"""Validation while a fit runs, and what follows its figures."""

from typing import Any

import numpy as np
import pytest

from multifit import EarlyStoppingHandler, Every, MultiEstimator, ValidationHandler


def test_validation_data_that_a_handler_replaces_is_told(estimator, batches, caplog):
    estimator.fit(batches, batches, epochs=1, event_handlers=ValidationHandler(batches, batch_period=2))
    assert "val_data= is not evaluated" not in caplog.text
    history = estimator.fit(batches, batches[:1], epochs=1, event_handlers=ValidationHandler(batches))
    assert "val_data= is not evaluated: the ValidationHandler that was given evaluates its own" in caplog.text
    assert history["val_loss"] == [estimator.evaluate(batches, event_handlers=[])["loss"]]


@pytest.mark.parametrize("event", ["train_begin", "batch_end"])
def test_a_handler_may_evaluate(estimator: MultiEstimator, batches: Any, event: str) -> None:
    evaluations = []

    def evaluate(estimator: Any, **arguments: Any) -> None:
        evaluations.append(estimator.evaluate(batches, event_handlers=[]))

    handler = type("Evaluator", (), {event: staticmethod(evaluate)})()
    history = estimator.fit(batches, epochs=1, event_handlers=handler)
    assert evaluations
    assert "train_loss" in history
    if event == "train_begin":  # no epoch has begun: there is no row for them
        assert "val_loss" not in history
    else:
        assert history["val_loss"] == [evaluations[-1]["loss"]]


def test_monitors_are_checked_within_every(estimator: MultiEstimator, batches: Any) -> None:
    with pytest.raises(ValueError, match='no figure "loss"'):
        estimator.fit(batches, epochs=1, event_handlers=Every(5, "epoch", EarlyStoppingHandler("loss")))


def test_validation_data_of_a_handler_may_be_monitored(estimator: MultiEstimator, batches: Any) -> None:
    for validation in (ValidationHandler(batches), Every(1, "epoch", ValidationHandler(batches))):
        handlers = [EarlyStoppingHandler("val_loss", patience=3), validation]
        assert np.isfinite(estimator.fit(batches, epochs=2, event_handlers=handlers)["val_loss"]).all()
