"""What a way of sampling from several loaders must have."""

from __future__ import annotations

from typing import Collection, Iterator, Mapping, Protocol

import numpy as np

from .updates import Update


class Sampling(Protocol):
    """Decides how many batches an epoch takes from each of several loaders, and in which order.

    The object never changes, and all its random numbers come from the `random` that it gets, so that a run
    resumes exactly.
    """

    @property
    def joins(self) -> bool:
        """Whether an update gets a batch of every loader."""

    def messages(self, loaders: Collection[str]) -> Iterator[str]:
        """Yield what is wrong for loaders of these names."""

    def counts(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return how many batches an epoch takes from each loader; `sizes` says how many the loaders have.

        A loader that must give more than it has starts again.
        """

    def updates(self, counts: Mapping[str, int], random: np.random.RandomState) -> list[Update]:
        """Return the loaders of each update of an epoch, which takes `counts` batches from each loader."""
