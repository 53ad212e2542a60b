"""Step time of multifit divided by that of hand-written loops, for nets of one output and of 1 to 64 heads.

One fit of multifit runs; after each of its epochs the others run an epoch on the same batches, so that
changes of the machine's speed affect all of them.
"""

from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace

import numpy as np

from .results import Row
from .rounds import Rounds, timed
from .subjects import HEADS, NMT, SINGLES, SSD, Subject

__all__ = ["heads", "step_time", "summed_up"]


def measured(table: str, case: Subject, epochs: int | None = None) -> Iterator[Row]:
    """Yield milliseconds per step of multifit and the others, which train alternately, epoch by epoch."""
    batches = case.batches()
    turns = {name: timed(partial(epoch, batches)) for name, epoch in case.others().items()}
    times = Rounds(turns).run(case.estimator(), batches, epochs or case.rounds)
    yield Row.of_seconds(table, case.name, times, len(batches))


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
    yield Row("heads", "one more head", "µs per step", slopes)


step_time = SimpleNamespace(
    NAME="step_time", CASES=(*SINGLES, SSD, NMT), measure=partial(measured, "step_time")
)
heads = SimpleNamespace(NAME="heads", CASES=HEADS, measure=partial(measured, "heads"), summed_up=summed_up)
