"""The other end of `child.Child`'s line: it needs nothing but Python, so that any environment can have it."""

from __future__ import annotations

import json
import sys
import time
from typing import Any, Callable

__all__ = ["Line", "serve"]


class Line:
    """What is asked comes in, one line each; what is answered goes out.

    Libraries may call back at an epoch's begin only. `turn` is made for that: it answers how long the epoch
    took that is behind, if any, waits until the next is asked for, and starts the clock.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self._begun = clock, None

    def answer(self, value: Any) -> None:
        """Say something."""
        print("> " + json.dumps(value), flush=True)

    def wait(self) -> str:
        """Return what is asked; empty when nobody will ask any more."""
        return sys.stdin.readline().strip()

    def turn(self) -> bool:
        """Stand between two epochs; False when there shall be no more."""
        self.answer("ready" if self._begun is None else self._clock() - self._begun)
        more = bool(self.wait())
        self._begun = self._clock()
        return more


def serve(epoch: Callable[[], Any]) -> None:
    """Run an epoch whenever it is asked for."""
    line = Line()
    while line.turn():
        epoch()
