"""Contenders take turns, so that changes of the machine's speed affect all of them.

After the others' turns, the processor's caches hold the others' data, and a contender's threads may share a
core for a while. Neither happens to a training that runs alone. So each turn runs for a while before the run
that counts.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

import mxnet as mx

from .results import OURS

__all__ = ["FEWEST", "WARM", "Rounds", "Turn", "alternate", "timed"]

Turn = Callable[[], float]  # runs a contender once; returns the seconds

WARM = 2  # rounds at the start that do not count: graphs are traced, memory is allocated
FEWEST = 3  # rounds that count, however long they take
STEADY = 0.05  # seconds that a contender runs in each turn, at least once, before the run that counts
MOST = 10**6  # epochs, which no fit reaches


def timed(function: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> Turn:
    """Return a turn of a function that uses MXNet's engine; it lasts until the engine has finished."""

    def turn() -> float:
        mx.nd.waitall()
        start = clock()
        function()
        mx.nd.waitall()
        return clock() - start

    return turn


def alternate(
    turns: Mapping[str, Turn],
    rounds: int,
    limit: float = float("inf"),
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Run `rounds` turns of each contender, one after the other; return the seconds.

    After `limit` seconds no further round begins, if there are enough of them.
    """
    times: dict[str, list[float]] = {name: [] for name in turns}
    end = clock() + limit
    for done in range(rounds + WARM):
        if done >= FEWEST + WARM and clock() > end:
            break
        for name, turn in turns.items():
            times[name].append(_steady(turn))
    return {name: values[WARM:] for name, values in times.items()}


class Rounds:
    """An event handler that times the epochs of a fit, and runs the others' turns in between.

    Parameters
    ----------
    others : mapping of str to callable
        The other contenders' turns.
    clock : callable
        Returns seconds.
    """

    priority = -999.0  # right after the handler that reads the figures, as every contender does

    def __init__(self, others: Mapping[str, Turn], clock: Callable[[], float] = time.perf_counter) -> None:
        self._others, self._clock, self._start = dict(others), clock, 0.0
        self._times: dict[str, list[float]] = {OURS: [], **{name: [] for name in others}}

    def run(self, estimator: Any, batches: Any, rounds: int) -> dict[str, list[float]]:
        """Fit until there are as many rounds, after the warm-up; return every contender's seconds."""
        self._spent, self._rounds = 0.0, rounds + WARM
        estimator.fit(batches, epochs=MOST, event_handlers=self)
        return {name: values[WARM:] for name, values in self._times.items()}

    def epoch_begin(self, estimator: Any) -> None:
        """Start the clock."""
        mx.nd.waitall()
        self._start = self._clock()

    def epoch_end(self, estimator: Any) -> bool:
        """Stop the clock, and run the others if this epoch counts; return whether all rounds are done."""
        mx.nd.waitall()
        seconds = self._clock() - self._start
        if self._spent >= STEADY:
            self._spent = 0.0
            self._times[OURS].append(seconds)
            for name, turn in self._others.items():
                self._times[name].append(_steady(turn))
        else:
            self._spent += seconds
        return len(self._times[OURS]) == self._rounds


def _steady(turn: Turn) -> float:
    """Return the seconds of a turn's last run."""
    spent = turn()
    while spent < STEADY:
        spent += turn()
    return turn()
