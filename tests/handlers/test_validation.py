"""ValidationHandler."""

import math
from typing import Any

import pytest

from multifit.handlers import ValidationHandler
from tests.common.handlers import handler


@pytest.mark.parametrize(
    ("arguments", "steps"),
    [
        ({}, [3, 6, 9, 12, 15]),
        ({"epoch_period": 2}, [6, 12]),
        ({"skip": 3}, [12, 15]),
        ({"epoch_period": 2, "skip": 1}, [9, 15]),
        ({"epoch_period": None, "batch_period": 4}, [4, 8, 12]),
        ({"epoch_period": None, "batch_period": 4, "skip": 5}, [9, 13]),
        ({"epoch_period": 2, "batch_period": 4}, [4, 6, 8, 12]),  # at 12 both are due: once
    ],
)
def test_when_it_evaluates_also_in_a_second_fit(
    run: Any, arguments: dict[str, Any], steps: list[int]
) -> None:
    validation = ValidationHandler("data", **arguments)
    run.fit(validation, epochs=2)
    run.fit(validation, epochs=3)
    assert run.evaluated == [("data", step) for step in steps]


def test_the_figures_are_in_the_history_and_its_own_handlers_get_them(run: Any) -> None:
    calls: list[Any] = []
    listener = handler(evaluate_end=lambda estimator, figures: calls.append(figures))
    history = run.fit(ValidationHandler("data", epoch_period=2, event_handlers=[listener]), epochs=3)
    assert history["val_loss"] == [math.nan, 2 / 6, math.nan] and calls == [{"loss": 2 / 6}]


def test_a_run_that_was_reset_is_evaluated_again(run: Any) -> None:
    validation = ValidationHandler("data")
    run.fit(validation)
    run.state.epoch = run.state.step = 0
    run.fit(validation)
    assert run.evaluated == [("data", 3), ("data", 3)]
