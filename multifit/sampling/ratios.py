"""Batches in given ratios."""

from __future__ import annotations

from typing import Collection, Iterator, Mapping

import numpy as np

from ..arguments import Positive, checked_value
from ..errors import quoted, suggest
from .apportion import apportion
from .updates import Update, spread


class Ratios:
    """Takes batches in given ratios, spread over the epoch as evenly as possible.

    An epoch takes as many batches as all loaders have. ``Ratios(detection=2, segmentation=1)`` takes two
    batches from detection for each batch from segmentation.

    Parameters
    ----------
    **ratios : float
        The share of each loader, by its name; ``Ratios(**{"a/b": 2, "c": 1})`` for names that are not Python
        identifiers.

    Raises
    ------
    ValueError
        No ratio is given, or one is not a number above 0.
    """

    joins = False

    def __init__(self, **ratios: float) -> None:
        if not ratios:
            raise ValueError("Ratios: there is none; give one for each loader: Ratios(detection=2, depth=1)")
        problems = []
        self.ratios: dict[str, float] = {}
        for name, ratio in ratios.items():
            try:
                self.ratios[name] = checked_value(f"Ratios: {name}", ratio, Positive)
            except ValueError as error:
                problems.append(str(error))
        if problems:
            raise ValueError("\n".join(problems))

    def messages(self, loaders: Collection[str]) -> Iterator[str]:
        """Yield which loaders have no ratio, and which ratios have no loader."""
        for name in self.ratios:
            if name not in loaders:
                near = suggest(name, [loader for loader in loaders if loader not in self.ratios])
                yield f'Ratios: there is no loader "{name}"{near}; loaders are {quoted(loaders)}'
        for loader in loaders:
            if loader not in self.ratios:
                yield f'Ratios: the loader "{loader}" has no ratio; give {loader}=1, or leave the loader out'

    def counts(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return the number of batches in an epoch by loader."""
        return dict(zip(sizes, apportion(sum(sizes.values()), [self.ratios[name] for name in sizes])))

    def updates(self, counts: Mapping[str, int], random: np.random.RandomState) -> list[Update]:
        """Return the loaders of an epoch's updates, evenly spread."""
        return spread(counts)
