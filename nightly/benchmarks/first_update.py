"""The time until the first updates, from the call of `fit` or from the construction of the estimator.

Every turn uses new nets with unknown shapes. What a process does only once is done in the warm-up rounds.
Both contenders run the same batches; the difference is given in steady batches of the hand-written loop.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any, Callable, Iterator, Mapping

import mxnet as mx

from .rounds import alternate, timed
from .rows import OURS, Row
from .subjects import HEADS, SINGLES, Subject

__all__ = ["CASES", "NAME", "measure"]

NAME = "first_update"
CASES = tuple(case for case in (*HEADS, *SINGLES) if case.name in ("2 heads", "MLP", "ResNet18 thumbnail"))
UPDATES = (1, 3)  # the first is checked; by the third every graph has been traced
ROUNDS = 15
STEADY = "a batch of the hand-written loop later on"


class _Until:
    """Records the time at the end of the last batch; what follows belongs to the epoch, not to the update."""

    priority = -5000.0

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self.ended = clock, 0.0

    def batch_end(self, estimator: Any) -> None:
        mx.nd.waitall()
        self.ended = self._clock()


def measure(case: Subject, epochs: int | None = None) -> Iterator[Row]:
    """Yield milliseconds until the updates are done, and by how many batches multifit is later."""
    batches, steady = case.batches(), timed(partial(case.hand_written(), case.batches()))
    for updates in UPDATES:
        turns = {
            OURS: partial(_ours, case, updates),
            f"{OURS}, with its making": partial(_ours, case, updates, making=True),
            "hand-written": partial(_by_hand, case, updates),
            STEADY: lambda: steady() / len(batches),
        }
        times = alternate(turns, epochs or ROUNDS)
        what = f"{case.name}, {updates} update{'s' if updates > 1 else ''}"
        yield Row.of_seconds(NAME, what, times)
        yield Row(NAME, what, "batches", _later(times))


def _later(times: Mapping[str, list[float]]) -> dict[str, list[float]]:
    """Return how much later than the hand-written loop multifit is, in steady batches, for each round."""
    rounds = list(zip(times["hand-written"], times[STEADY]))
    return {
        f"{name} later by": [(ours - hand) / batch for ours, (hand, batch) in zip(seconds, rounds)]
        for name, seconds in times.items()
        if name.startswith(OURS)
    }


def _ours(
    case: Subject, updates: int, making: bool = False, clock: Callable[[], float] = time.perf_counter
) -> float:
    net, batches, until = case.net(settled=False), case.batches()[:updates], _Until(clock)
    mx.nd.waitall()
    begun = clock()
    estimator = case.estimator(net)
    begun = begun if making else clock()
    estimator.fit(batches, batches=updates, event_handlers=until)
    return until.ended - begun


def _by_hand(case: Subject, updates: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Time the loop alone; net, trainer and metrics are made before, like the estimator."""
    epoch, batches = case.hand_written(settled=False), case.batches()[:updates]
    return timed(partial(epoch, batches), clock)()
