"""EarlyStoppingHandler."""

from __future__ import annotations

import math
from typing import Any

import pytest

from multifit.handlers import EarlyStoppingHandler, ValidationHandler

NAN = math.nan


def epochs_trained(run: Any, values: list[float], handler: EarlyStoppingHandler, figure: str = "loss") -> int:
    """Run with these validation values, one batch per epoch, and return after how many epochs it stopped."""
    begun = run.state.step
    run.validation = lambda state: {figure: values[state.step - begun - 1]}
    run.fit(handler, ValidationHandler("data"), epochs=len(values), batches=1)
    return run.state.step - begun


@pytest.mark.parametrize(
    ("arguments", "values", "epochs"),
    [
        ({}, [3, 2, 1, 0], 4),
        ({}, [3, 2, 2, 0], 3),  # no worse is no better
        ({"patience": 1}, [3, 2, 2, 0], 3),
        ({"patience": 2}, [3, 4, 2, 3, 3, 0], 5),  # an improvement begins the row anew
        ({"patience": 2}, [3, NAN, 4, NAN, NAN, 5, 0], 6),  # not measured: passed over
        ({"min_delta": 0.5}, [3, 2.6, 0], 2),
        ({"min_delta": 0.5}, [3, 2.4, 1.8, 1.2], 4),
        ({"patience": 2, "min_delta": 0.5}, [3, 2.6, 2.4, 2.3, 2.2, 0], 5),  # against the best, not the last
        ({"baseline": 2.5}, [3, 2, 1], 1),
        ({"baseline": 2.5, "patience": 2}, [3, 2, 1, 0], 4),
        ({"mode": "max"}, [1, 2, 3, 2, 9], 4),
        ({"mode": "max", "min_delta": 0.5}, [1, 1.6, 2.0, 9], 3),
    ],
)
def test_when_it_stops(run: Any, arguments: dict[str, Any], values: list[float], epochs: int) -> None:
    assert epochs_trained(run, values, EarlyStoppingHandler("val_loss", **arguments)) == epochs


def test_the_direction_is_the_estimators(run: Any) -> None:
    assert epochs_trained(run, [0.1, 0.2, 0.3, 0.2, 0.9], EarlyStoppingHandler("val_acc"), "acc") == 4


@pytest.mark.parametrize(
    ("patience", "reason"),
    [
        (0, "val_loss has not improved on 2.0000 for 1 epoch"),
        (2, "val_loss has not improved on 2.0000 for 2 epochs"),
    ],
)
def test_the_reason(run: Any, patience: int, reason: str) -> None:
    epochs_trained(run, [3, 2, 4, 5], EarlyStoppingHandler("val_loss", patience=patience))
    assert run.state.stop_reason == reason


def test_a_second_fit_begins_anew(run: Any) -> None:
    handler = EarlyStoppingHandler("val_loss")
    assert epochs_trained(run, [1, 2], handler) == 2
    assert epochs_trained(run, [9, 8, 8, 7], handler) == 3


def test_a_direction_that_the_estimator_does_not_know(run: Any) -> None:
    """MultiEstimator refuses such a monitor before any update; the handler can be told the direction."""
    run.directions.clear()
    assert epochs_trained(run, [1, 2, 3], EarlyStoppingHandler("val_loss", mode="max", patience=1)) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"monitor": 3}, 'monitor is 3; valid is a name such as "val_loss"'),
        ({"mode": "maximum"}, 'mode is "maximum" (did you mean "max"?); valid are "min", "max"'),
        ({"patience": -1}, "patience is -1; valid is a whole number of at least 0"),
        ({"min_delta": -0.1}, "min_delta is -0.1; valid is a finite number of at least 0"),
        ({"min_delta": NAN}, "min_delta is nan; valid is a finite number of at least 0"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        EarlyStoppingHandler(**{"monitor": "val_loss", **arguments})
    assert str(caught.value) == f"EarlyStoppingHandler: {message}"
