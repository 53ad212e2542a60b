"""How far Python may run ahead of the engine."""

from __future__ import annotations

from collections import deque
from typing import Any, Iterable

import numpy as np

__all__ = ["Throttle"]

FARTHEST = 64  # batches that wait for the engine at most, and at least
NEAREST = 2
ROOM = 64 * 2**20  # bytes that the arrays of waiting batches may hold, unless that is less than the nearest


class Throttle:
    """Lets Python wait for the engine where it is many batches ahead.

    Python only asks for computations, which is often faster than making them; what it asked for keeps its
    batch in memory until it is done. Some batches ahead are enough to keep the engine busy. Python waits for
    the oldest of these then, never for the newest, so the engine goes on meanwhile.
    """

    def __init__(self) -> None:
        self.limit = FARTHEST
        self._asked: deque[Any] = deque()

    def fit(self, arrays: Iterable[Any]) -> None:
        """Choose the limit by what is held of a batch; larger batches bring it down."""
        size = sum(array.size * np.dtype(array.dtype).itemsize for array in arrays if array is not None)
        self.limit = max(NEAREST, min(self.limit, ROOM // max(size, 1)))

    def follow(self, arrays: Iterable[Any]) -> None:
        """Take note of what was asked for last, and wait for what was asked for long ago.

        Parameters
        ----------
        arrays : iterable of NDArray
            One per device; they are held until they are waited for.
        """
        self._asked.append(list(arrays))
        while len(self._asked) > self.limit:
            for array in self._asked.popleft():
                array.wait_to_read()

    def clear(self) -> None:
        """Forget what was asked for; whoever reads figures waits for all of it."""
        self._asked.clear()
