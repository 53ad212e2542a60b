"""Contenders take turns."""

from itertools import count

import pytest

from nightly.benchmarks.rounds import FEWEST, STEADY, WARM, Rounds, alternate


def test_the_second_run_of_a_long_turn_counts():
    ran, ticks = [], count(1)

    def turn(name: str):
        return lambda: (ran.append(name), next(ticks))[1]

    found = alternate({"a": turn("a"), "b": turn("b")}, 2)
    assert ran == ["a", "a", "b", "b"] * (WARM + 2)
    assert found == {"a": [4 * WARM + 2, 4 * WARM + 6], "b": [4 * WARM + 4, 4 * WARM + 8]}


def test_short_turns_are_repeated():
    ran = []
    alternate({"a": lambda: (ran.append("a"), 0.4 * STEADY)[1]}, 1)
    assert ran == ["a"] * 4 * (WARM + 1)


@pytest.mark.parametrize("seconds, rounds", [(20.0, FEWEST), (1.0, 7), (0.0, 50)])
def test_no_round_begins_after_the_limit(seconds, rounds):
    ticks = count()
    assert alternate({"a": lambda: 1.0}, 50, 4.0, lambda: seconds * next(ticks)) == {"a": [1.0] * rounds}


class Estimator:
    """Tells the moments of a fit, and moves a clock by what an epoch takes."""

    now = 0.0

    def __init__(self, epoch: float):
        self.epoch, self.epochs = epoch, 0

    def fit(self, batches, epochs, event_handlers):
        stopped = False
        while not stopped and self.epochs < epochs:
            event_handlers.epoch_begin(self)
            self.epochs += 1
            self.now += self.epoch * self.epochs
            stopped = event_handlers.epoch_end(self)


@pytest.mark.parametrize("epoch, runs", [(1.0, 2), (STEADY / 1e6, None)], ids=["long", "short"])
def test_others_run_between_the_epochs_of_a_fit(epoch, runs):
    estimator, asked = Estimator(epoch), []

    def other() -> float:
        estimator.now += 100  # is not counted as multifit's
        asked.append(estimator.now)
        return 7.0

    found = Rounds({"other": other}, lambda: estimator.now).run(estimator, [], 2)
    assert found["other"] == [7.0, 7.0]
    assert len(asked) == 2 * (WARM + 2)
    assert found["multifit"][-1] == pytest.approx(epoch * estimator.epochs)
    if runs is None:
        assert estimator.epochs > 100 * (WARM + 2)
    else:
        assert found["multifit"] == [runs * (WARM + 1), runs * (WARM + 2)]
