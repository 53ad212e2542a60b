"""A batch of each loader in every update."""

from __future__ import annotations

from typing import Annotated, Collection, Iterator, Mapping

import numpy as np

from ..arguments import checked, one_of
from .updates import Update


class Together:
    """Takes a batch of each loader in every update.

    Loaders that have all inputs of the net give one large batch, in which samples lack the labels of other
    loaders: declare these with ``LabelSpec(missing=)``. Loaders that each have inputs of their own give a
    batch side by side, and must give equally many samples.

    Parameters
    ----------
    until : {"longest", "shortest"}
        Whether an epoch lasts until the longest loader has given all, while others start again, or until the
        shortest has.

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
