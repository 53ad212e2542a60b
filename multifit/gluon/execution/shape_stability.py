"""Find out whether the shapes of batches repeat, so that planning memory for them pays off."""

from __future__ import annotations

from typing import Hashable

MAX_CHANGES = 4  # of the planned shapes at most: each change costs the time of several batches


class ShapeStability:
    """Finds the signature that repeats on one device: two batches in a row have it."""

    def __init__(self, last: Hashable) -> None:
        self._stable: Hashable = None
        self._last = last
        self._changes = 0

    def repeats(self, signature: Hashable) -> bool:
        """Whether this is the signature to plan memory for."""
        repeated = signature is not None and signature == self._last
        if repeated and signature != self._stable and self._changes < MAX_CHANGES:
            self._stable, self._changes = signature, self._changes + 1
        self._last = signature
        return signature is not None and signature == self._stable
