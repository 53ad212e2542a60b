"""An estimator's run, set aside for a while."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Iterator

from ..metrics import copy_metric
from ..metrics.stage_metric import StageMetric

__all__ = ["set_aside"]

OF_ENGINE = ("hooks", "measures", "seen", "stages", "_feeds")
OF_ESTIMATOR = ("history", "max_epoch", "max_batch")


@contextmanager
def set_aside(estimator: Any, batches: int) -> Iterator[None]:
    """Let an estimator run with stages, metrics, counters and a history of its own; then all is as it was.

    Parameters
    ----------
    estimator : MultiEstimator
        Whose net and trainers are not copied: see `preserve_state`.
    batches : int
        How many there will be, for handlers that ask.
    """
    engine, state = estimator._engine, estimator.state
    kept = [
        (engine, {name: getattr(engine, name) for name in OF_ENGINE}),
        (estimator, {name: getattr(estimator, name) for name in OF_ESTIMATOR}),
        (state, dict(vars(state))),
    ]
    try:
        engine.measures = {
            stage: [StageMetric(measure.term, copy_metric(measure.metric)) for measure in measures]
            for stage, measures in engine.measures.items()
        }
        engine.seen = {stage: list(forms) for stage, forms in engine.seen.items()}
        own = type(estimator.history)()
        estimator.history, estimator.max_epoch, estimator.max_batch = own, None, batches
        estimator.history.open_row()
        state.start()
        engine.renew()
        yield
    finally:
        for owner, values in kept:
            vars(owner).update(values)
