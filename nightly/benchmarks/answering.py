"""The other end of `child.Child`'s line: it needs nothing but Python, so that any environment can have it."""

from __future__ import annotations

import json
import sys
import time
from typing import Any, Callable, Sequence

__all__ = ["Line", "serve"]


class Line:
    """What is asked comes in, one line each; what is answered goes out.

    Libraries may call back at an epoch's begin only. `turn` is made for that: it answers how long the epoch
    took that is behind, if any, and its figures, waits until the next is asked for, and starts the clock.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self._begun = clock, None

    def answer(self, value: Any) -> None:
        """Say something."""
        print("> " + json.dumps(value), flush=True)

    def wait(self) -> str:
        """Return what is asked; empty when nobody will ask any more."""
        return sys.stdin.readline().strip()

    def turn(self, figures: Sequence[float] = ()) -> bool:
        """Stand between two epochs, with the figures of the one behind; False when there shall be no more."""
        ended = self._clock()
        self.answer("ready" if self._begun is None else [ended - self._begun, *map(float, figures)])
        more = bool(self.wait())
        self._begun = self._clock()
        return more


def serve(epoch: Callable[[], Sequence[float]]) -> None:
    """Run an epoch, which returns its figures, whenever it is asked for."""
    line, figures = Line(), ()
    while line.turn(figures):
        figures = epoch()
