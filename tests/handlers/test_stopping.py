"""StoppingHandler."""

from __future__ import annotations

from typing import Any

import pytest

from multifit.handlers import StoppingHandler


@pytest.mark.parametrize(
    ("limits", "steps", "reason"),
    [
        ({"max_epoch": 2}, 6, "2 epochs"),
        ({"max_epoch": 1}, 3, "1 epoch"),
        ({"max_batch": 4}, 4, "4 batches"),
        ({"max_batch": 1}, 1, "1 batch"),
        ({"max_epoch": 2, "max_batch": 4}, 4, "4 batches"),
        ({"max_epoch": 1, "max_batch": 4}, 3, "1 epoch"),
        ({}, 15, None),
    ],
)
def test_limits(run: Any, limits: dict[str, int], steps: int, reason: str | None) -> None:
    run.fit(StoppingHandler(**limits), epochs=5)
    assert (run.state.step, run.state.stop_reason) == (steps, reason)


def test_without_limits_of_its_own_it_takes_the_estimators(run: Any) -> None:
    run.max_epoch = 2
    run.fit(StoppingHandler(), epochs=5)
    assert run.state.step == 6
    run.max_epoch, run.max_batch = None, 4
    run.fit(StoppingHandler(), epochs=5)
    assert run.state.step == 10


def test_limits_may_be_rewritten_in_the_run(run: Any) -> None:
    class Shorten:
        def epoch_begin(self, estimator: Any) -> None:
            if estimator.state.epoch == 1:
                estimator.max_epoch = 1  # already passed when this epoch ends

    run.max_epoch = 4
    run.fit(StoppingHandler(), Shorten(), epochs=5)
    assert run.state.step == 6


def test_its_own_limits_go_before_the_estimators(run: Any) -> None:
    run.max_epoch, run.max_batch = 1, 1
    run.fit(StoppingHandler(max_epoch=3, max_batch=5), epochs=5)
    assert run.state.step == 5


def test_a_second_fit_counts_anew(run: Any) -> None:
    handler = StoppingHandler(max_epoch=2)
    run.fit(handler, epochs=5)
    run.fit(handler, epochs=5)
    assert run.state.step == 12


@pytest.mark.parametrize("name", ["max_epoch", "max_batch"])
@pytest.mark.parametrize("value", [0, -1, 2.5, "3"])
def test_bad_limits(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"StoppingHandler: {name} is {value!r}; valid is a whole number"):
        StoppingHandler(**{name: value})
