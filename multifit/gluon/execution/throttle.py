"""How far Python may run ahead of the engine."""

from __future__ import annotations

from collections import deque
from typing import Iterable

from ...protocols import Array
from ..data.arrays import size_in_bytes

MAX_BATCHES = 64  # that may wait for the engine at most, and
MIN_BATCHES = 2  # at least
MAX_BYTES = 64 * 2**20  # that the arrays of waiting batches may take, unless MIN_BATCHES take more


class Throttle:
    """Makes Python wait for the engine when it is many batches ahead.

    Python only asks for computations, which is often faster than computing, and every batch stays in memory
    until it is computed. A few batches ahead keep the engine busy. Python waits for the oldest of these,
    never for the newest, so the engine never runs dry.
    """

    def __init__(self) -> None:
        self.limit = MAX_BATCHES
        self._queue: deque[list[Array]] = deque()

    def fit_to(self, arrays: Iterable[Array | None]) -> None:
        """Lower the limit if these arrays of one batch are large."""
        # sparse arrays have no size; MXNet makes them dense for operators that know nothing else
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
