"""Contenders take turns: when the machine changes its speed, it does for all of them.

Whoever waited finds the processor's caches full of what the others did, which nobody does whose training has
the machine to itself. So each turn is two runs, of which the second one counts.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Mapping

import mxnet as mx

from .rows import OURS

__all__ = ["WARM", "Rounds", "Turn", "alternate", "timed"]

Turn = Callable[[], float]  # lets a contender run once, and returns how many seconds it took

WARM = 2  # rounds at the beginning that are left out: graphs are traced, memory is taken


def timed(function: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> Turn:
    """Return a turn of a function that issues work to MXNet's engine; it lasts until all is done."""

    def turn() -> float:
        mx.nd.waitall()
        begun = clock()
        function()
        mx.nd.waitall()
        return clock() - begun

    return turn


def alternate(turns: Mapping[str, Turn], rounds: int) -> dict[str, list[float]]:
    """Let everybody take `rounds` turns, one after the other; return the seconds."""
    times: dict[str, list[float]] = {name: [] for name in turns}
    for _ in range(rounds + WARM):
        for name, turn in turns.items():
            times[name].append(_second(turn))
    return {name: values[WARM:] for name, values in times.items()}


class Rounds:
    """An event handler that times each epoch of a fit, and lets the others run theirs in between.

    Parameters
    ----------
    others : mapping of str to callable
        Their turns.
    clock : callable
        Returns seconds.
    """

    priority = -999.0  # right behind the handler that reads the figures, which every contender does too

    def __init__(self, others: Mapping[str, Turn], clock: Callable[[], float] = time.perf_counter) -> None:
        self._others, self._clock, self._begun = dict(others), clock, 0.0
        self._times: dict[str, list[float]] = {OURS: [], **{name: [] for name in others}}

    def run(self, estimator: Any, batches: Any, rounds: int) -> dict[str, list[float]]:
        """Fit for two epochs a round, and some more to get warm; return everybody's seconds."""
        self._epochs = 0
        estimator.fit(batches, epochs=2 * (rounds + WARM), event_handlers=self)
        return {name: values[WARM:] for name, values in self._times.items()}

    def epoch_begin(self, estimator: Any) -> None:
        """Start the clock."""
        mx.nd.waitall()
        self._begun = self._clock()

    def epoch_end(self, estimator: Any) -> None:
        """Stop the clock, and let the others run."""
        mx.nd.waitall()
        ended = self._clock()
        self._epochs += 1
        if self._epochs % 2 == 0:
            self._times[OURS].append(ended - self._begun)
            for name, turn in self._others.items():
                self._times[name].append(_second(turn))


def _second(turn: Turn) -> float:
    turn()
    return turn()
