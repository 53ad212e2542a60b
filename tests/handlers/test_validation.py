"""ValidationHandler."""

import math
from typing import Any

import pytest

from multifit.handlers import ValidationHandler


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
def test_when_it_evaluates(run: Any, arguments: dict[str, Any], steps: list[int]) -> None:
    run.fit(ValidationHandler("data", **arguments), epochs=5)
    assert run.evaluated == [("data", step) for step in steps]


def test_the_figures_are_in_the_history(run: Any) -> None:
    history = run.fit(ValidationHandler("data", epoch_period=2), epochs=3)
    assert history["val_loss"] == [math.nan, 2 / 6, math.nan]


def test_counting_continues_in_a_second_fit(run: Any) -> None:
    handler = ValidationHandler("data", epoch_period=2, skip=1)
    run.fit(handler, epochs=2)
    run.fit(handler, epochs=2)
    assert run.evaluated == [("data", 9)]


def test_a_run_that_was_reset_is_evaluated_again(run: Any) -> None:
    handler = ValidationHandler("data")
    run.fit(handler)
    run.state.epoch = run.state.step = 0
    run.fit(handler)
    assert run.evaluated == [("data", 3), ("data", 3)]


def test_handlers_for_the_evaluation_only(run: Any) -> None:
    calls = []

    class Listener:
        def evaluate_end(self, estimator: Any, figures: dict[str, float]) -> None:
            calls.append(figures)

    run.fit(ValidationHandler("data", event_handlers=[Listener()]))
    assert calls == [{"loss": 2 / 3}]
