"""Batches in proportion to the loaders' sizes."""

from __future__ import annotations

from typing import Collection, Iterator, Mapping, Optional

import numpy as np

from ..arguments import Count, Positive, checked
from ..errors import counted
from .apportion import apportion
from .updates import Update, shuffled


class Proportional:
    r"""Takes batches in proportion to a power of the loaders' sizes, in random order.

    .. math:: n_i \propto \min(e_i, K)^{1/T}

    where :math:`e_i` is the number of batches that a loader has. With the defaults an epoch takes each loader
    once. A higher temperature :math:`T` takes more from small loaders and less from large ones; in the limit,
    all give the same number. The limit :math:`K` keeps a huge loader from taking nearly all updates.

    Parameters
    ----------
    temperature : float
        :math:`T`; 1 is in proportion to the sizes.
    largest : int, optional
        :math:`K`, in batches: larger loaders count as this large. Default: no limit.
    batches : int, optional
        The number of batches in an epoch. Default: as many as all loaders have.

    Raises
    ------
    ValueError
        An argument is not valid.

    References
    ----------
    C. Raffel et al.: Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer. JMLR
    21, 2020, section 3.5.2.
    """

    joins = False

    @checked
    def __init__(
        self, temperature: Positive = 1.0, largest: Optional[Count] = None, batches: Optional[Count] = None
    ) -> None:
        self.temperature, self.largest, self.batches = temperature, largest, batches

    def messages(self, loaders: Collection[str]) -> Iterator[str]:
        """Yield what is wrong for loaders of these names."""
        if self.batches is not None and self.batches < len(loaders):
            yield (
                f"Proportional: batches is {self.batches}, fewer than the {counted(len(loaders), 'loader')}; "
                "give each of them at least one"
            )

    def counts(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return the number of batches in an epoch by loader."""
        limit = np.inf if self.largest is None else self.largest
        # divide by the largest first: with a small temperature, the power would be infinite otherwise
        rates = np.minimum(list(sizes.values()), limit) / min(max(sizes.values()), limit)
        total = sum(sizes.values()) if self.batches is None else self.batches
        return dict(zip(sizes, apportion(total, list(rates ** (1 / self.temperature)))))

    def updates(self, counts: Mapping[str, int], random: np.random.RandomState) -> list[Update]:
        """Return the loaders of an epoch's updates, shuffled."""
        return shuffled(counts, random)
