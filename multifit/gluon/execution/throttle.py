"""Limit how far Python may run ahead of the engine."""

from __future__ import annotations

from collections import deque
from typing import Iterable

from ...protocols import Array
from ..data.arrays import size_in_bytes

MAX_BATCHES = 64  # the largest number of batches that may wait for the engine
MIN_BATCHES = 2  # this many may always wait
MAX_BYTES = 64 * 2**20  # of the arrays of waiting batches, unless MIN_BATCHES take more


class Throttle:
    """Makes Python wait for the engine when it is many batches ahead.

    Python only submits computations, which is often faster than computing them, and every batch stays in
    memory until it is computed. A few batches ahead keep the engine busy. Python waits for the oldest of
    these, never for the newest, so that the engine always has work.
    """

    def __init__(self) -> None:
        self.limit = MAX_BATCHES
        self._queue: deque[list[Array]] = deque()

    def fit_to(self, arrays: Iterable[Array | None]) -> None:
        """Lower the limit if these arrays of one batch are large."""
        # a sparse array counts as if it were dense: MXNet makes it dense for operators that need that
        size = sum(size_in_bytes(array) for array in arrays if array is not None)
        self.limit = max(MIN_BATCHES, min(self.limit, MAX_BYTES // max(size, 1)))

    def push(self, arrays: Iterable[Array]) -> None:
        """Add a batch's last arrays, one per device, and wait for the oldest if there are too many."""
        self._queue.append(list(arrays))
        while len(self._queue) > self.limit:
            for array in self._queue.popleft():
                array.wait_to_read()

    def clear(self) -> None:
        """Forget all batches; reading a figure waits for them anyway."""
        self._queue.clear()
