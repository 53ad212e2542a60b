"""The child's side of `child.Child`; it needs only Python, so that it runs in any environment."""

import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["Line", "serve"]


class Line:
    """Reads requests and writes answers, one line each.

    `turn` is for libraries that call back only at the start of an epoch: it answers with the seconds and
    figures of the epoch before, if there was one, waits for the next request, and starts the clock.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self._begun = clock, None

    def answer(self, value: Any) -> None:
        """Write an answer."""
        print("> " + json.dumps(value), flush=True)

    def wait(self) -> str:
        """Return the next request; empty at the end of the input."""
        return sys.stdin.readline().strip()

    def turn(self, figures: Sequence[float] = ()) -> bool:
        """Answer with the figures of the last epoch and wait; return False if there is no next one."""
        ended = self._clock()
        self.answer("ready" if self._begun is None else [ended - self._begun, *map(float, figures)])
        more = bool(self.wait())
        self._begun = self._clock()
        return more


def serve(epoch: Callable[[], Sequence[float]]) -> None:
    """Run an epoch, which returns its figures, on each request."""
    line, figures = Line(), ()
    while line.turn(figures):
        figures = epoch()
