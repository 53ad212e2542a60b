"""A batch of each loader in turn."""

from __future__ import annotations

from typing import Collection, Iterator, Mapping

import numpy as np

from .updates import Update


class RoundRobin:
    """Takes a batch from each loader in turn, until the longest loader has given all its batches.

    Shorter loaders start again. The order is that of the dict of loaders.
    """

    joins = False

    def messages(self, loaders: Collection[str]) -> Iterator[str]:
        """Yield nothing: it works for any loaders."""
        return iter(())

    def counts(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return the number of batches in an epoch by loader."""
        return dict.fromkeys(sizes, max(sizes.values()))

    def updates(self, counts: Mapping[str, int], random: np.random.RandomState) -> list[Update]:
        """Return the loaders of an epoch's updates, in turn."""
        return [(name,) for _ in range(max(counts.values())) for name in counts]
