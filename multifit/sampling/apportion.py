"""Whole numbers of batches in proportion to rates."""

from __future__ import annotations

from typing import Sequence

import numpy as np


def apportion(total: int, rates: Sequence[float]) -> list[int]:
    """Return whole numbers that add up to `total`, in proportion to `rates`: the largest remainder method.

    None of them is 0 if `total` allows it: a number that would be 0 takes one from the largest.

    >>> apportion(135, [10, 30**0.5, 5**0.5])
    [76, 42, 17]
    """
    exact = total * np.asarray(rates, "float64") / np.sum(rates)
    counts = np.floor(exact).astype(int)
    for index in np.argsort(-(exact - counts), kind="stable")[: total - counts.sum()]:
        counts[index] += 1
    while not counts.all() and counts.max() > 1:
        counts[counts.argmin()] += 1
        counts[counts.argmax()] -= 1
    return [int(count) for count in counts]
