"""Contenders take turns."""

from __future__ import annotations

from itertools import count

import pytest

from nightly.benchmarks.rounds import FEWEST, WARM, Rounds, alternate, timed


def test_the_second_run_of_each_turn_counts():
    ran, ticks = [], count()

    def turn(name: str):
        return lambda: (ran.append(name), next(ticks))[1]

    found = alternate({"a": turn("a"), "b": turn("b")}, 2)
    assert ran == ["a", "a", "b", "b"] * (WARM + 2)
    assert found == {"a": [4 * WARM + 1, 4 * WARM + 5], "b": [4 * WARM + 3, 4 * WARM + 7]}


@pytest.mark.parametrize("seconds, rounds", [(20.0, FEWEST), (1.0, 7), (0.0, 50)])
def test_no_round_begins_after_the_limit(seconds, rounds):
    ticks = count()
    assert alternate({"a": lambda: 1.0}, 50, 4.0, lambda: seconds * next(ticks)) == {"a": [1.0] * rounds}


def test_a_turn_lasts_from_its_call_to_its_end():
    clock = iter([1.0, 3.5])
    assert timed(lambda: None, lambda: next(clock))() == 2.5


class Estimator:
    """Tells the moments of a fit, and moves a clock by what an epoch takes."""

    now = 0.0

    def fit(self, batches, epochs, event_handlers):
        for epoch in range(epochs):
            event_handlers.epoch_begin(self)
            self.now += epoch
            event_handlers.epoch_end(self)


def test_others_run_between_the_epochs_of_a_fit():
    estimator, asked = Estimator(), []

    def other() -> float:
        estimator.now += 100  # is not counted as multifit's
        asked.append(estimator.now)
        return 7.0

    found = Rounds({"other": other}, lambda: estimator.now).run(estimator, [], 2)
    assert found == {"multifit": [2 * WARM + 1, 2 * WARM + 3], "other": [7.0, 7.0]}
    assert len(asked) == 2 * (WARM + 2)
