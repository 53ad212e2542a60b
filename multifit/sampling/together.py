"""A batch of each loader in every update."""

from __future__ import annotations

from typing import Annotated, Collection, Iterator, Mapping

import numpy as np

from ..arguments import checked, one_of
from .updates import Update


class Together:
    """Takes a batch from each loader in every update.

    If every loader has all inputs of the net, their batches are joined to one large batch. Its samples lack
    the labels of the other loaders: declare these labels with ``LabelSpec(missing=)``. If each loader has
    inputs of its own, the batches are put side by side, and must have the same number of samples.

    Parameters
    ----------
    until : {"longest", "shortest"}
        Whether an epoch ends when the longest loader has given all its batches, while the others start again,
        or when the shortest has.

    Raises
    ------
    ValueError
        `until` is not valid.
    """

    joins = True

    @checked
    def __init__(self, until: Annotated[str, one_of("longest", "shortest")] = "longest") -> None:
        self.until = until

    def messages(self, loaders: Collection[str]) -> Iterator[str]:
        """Yield nothing: it works for any loaders."""
        return iter(())

    def counts(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return the number of batches in an epoch by loader."""
        updates = {"longest": max, "shortest": min}[self.until](sizes.values())
        return dict.fromkeys(sizes, updates)

    def updates(self, counts: Mapping[str, int], random: np.random.RandomState) -> list[Update]:
        """Return the loaders of an epoch's updates: always all of them."""
        return [tuple(counts)] * max(counts.values())
