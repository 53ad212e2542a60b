"""The order in which the loaders of an epoch take turns."""

from __future__ import annotations

from typing import Mapping

import numpy as np

Update = tuple[str, ...]
"""The loaders that give a batch to one update of the parameters."""


def shuffled(counts: Mapping[str, int], random: np.random.RandomState) -> list[Update]:
    """Return each loader as often as `counts` says, in random order."""
    return [(name,) for name in random.permutation(np.repeat(list(counts), list(counts.values()))).tolist()]


def spread(counts: Mapping[str, int]) -> list[Update]:
    """Return each loader as often as `counts` says, spread over the epoch as evenly as possible.

    >>> spread({"a": 4, "b": 2})
    [('a',), ('b',), ('a',), ('a',), ('b',), ('a',)]
    """
    turns = [
        ((turn + 0.5) / count, place, name)
        for place, (name, count) in enumerate(counts.items())
        for turn in range(count)
    ]
    return [(name,) for _, _, name in sorted(turns)]
