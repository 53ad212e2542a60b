"""Step time of multifit divided by that of a hand-written loop and of Gluon's Estimator.

Run from the top of the repository: ``python -m nightly.benchmarks step_time [--case NAME …]``. One fit of
multifit runs; after each of its epochs the others run an epoch on the same batches, so that changes of the
machine's speed affect all of them. Ratios are taken epoch by epoch; below 1 multifit is faster.
"""

from collections.abc import Iterator
from functools import partial

from .results import Row
from .rounds import Rounds, timed
from .subjects import NMT, SINGLES, SSD, Subject

__all__ = ["CASES", "NAME", "epoch_row", "measure"]

NAME = "step_time"
CASES = (*SINGLES, SSD, NMT)


def measure(case: Subject, epochs: int | None = None) -> Iterator[Row]:
    """Yield milliseconds per step of each contender."""
    yield epoch_row(NAME, case, epochs)


def epoch_row(table: str, case: Subject, epochs: int | None = None) -> Row:
    """Train multifit and the others alternately, epoch by epoch; return milliseconds per step."""
    batches = case.batches()
    turns = {name: timed(partial(epoch, batches)) for name, epoch in case.others().items()}
    times = Rounds(turns).run(case.estimator(), batches, epochs or case.rounds)
    return Row.of_seconds(table, case.name, times, len(batches))
