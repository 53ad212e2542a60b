"""One body with 1 to 64 heads, compared with the usual loop and with one graph made by hand."""

from collections.abc import Iterator

import numpy as np

from .results import Row
from .step_time import epoch_row
from .subjects import HEADS, Heads

__all__ = ["CASES", "NAME", "measure", "summed_up"]

NAME = "heads"
CASES = HEADS


def measure(case: Heads, epochs: int | None = None) -> Iterator[Row]:
    """Yield milliseconds per step of each contender."""
    yield epoch_row(NAME, case, epochs)


def summed_up(rows: list[Row]) -> Iterator[Row]:
    """Yield the cost of one more head: the slope of the milliseconds over the heads, by round."""
    series = {int(row.case.split()[0]): row for row in rows if row.case.split()[-1].startswith("head")}
    equal = [count for count in series if count != 2]  # these two have different sizes
    if len(equal) < 2:
        return
    slopes = {
        name: [
            float(1000 * np.polyfit(equal, times, 1)[0])
            for times in zip(*(series[count].values[name] for count in equal))
        ]
        for name in series[equal[0]].values
    }
    yield Row(NAME, "one more head", "µs per step", slopes)
