"""`MultiEstimator.evaluate` compared with a hand-written loop with the same metrics."""

from __future__ import annotations

from functools import partial
from typing import Any, Iterator

from .rounds import alternate, timed
from .rows import OURS, Row
from .subjects import HEADS, SINGLES

__all__ = ["CASES", "NAME", "measure"]

NAME = "evaluation"
CASES = tuple(case for case in (*HEADS, *SINGLES) if case.name in ("2 heads", "MLP", "tiny FCN, mean IoU"))


def measure(case: Any, epochs: int | None = None) -> Iterator[Row]:
    """Yield milliseconds per batch of each contender."""
    batches = case.batches()
    turns = {
        OURS: timed(partial(case.estimator().evaluate, batches, event_handlers=[])),
        "hand-written": timed(partial(case.hand_written_evaluation(case.net()), batches)),
    }
    yield Row.of_seconds(NAME, case.name, alternate(turns, epochs or case.rounds), len(batches))
