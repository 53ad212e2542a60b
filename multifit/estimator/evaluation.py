"""An evaluation: one pass over batches that measures and moves nothing."""

from __future__ import annotations

from typing import Any, Callable, Iterable

from ..events import EVALUATION_EVENTS
from ..gluon.engine import Engine
from ..gluon.execution.result import StepResult
from ..stages import EVALUATE
from ..state import RunState
from .batch_pass import run_pass
from .handler_runner import HandlerRunner

__all__ = ["run_evaluation"]


def run_evaluation(
    engine: Engine,
    batches: Iterable[Any],
    total: int | None,
    step: Callable[[Any], StepResult],
    handlers: HandlerRunner,
) -> dict[str, float]:
    """Measure losses and metrics on batches; return the figures by name, without prefix.

    Parameters
    ----------
    engine : Engine
        Its evaluation stage is reset first.
    batches : iterable
        As the loader yields them.
    total : int or None
        How many batches there are, if known.
    step : callable
        ``step(batch) -> StepResult``.
    handlers : HandlerRunner
        Calls the handlers.
    """
    stage, state, events = engine.stages[EVALUATE], RunState(), EVALUATION_EVENTS
    stage.reset()
    handlers.emit(events.begin, batches=total)
    run_pass(batches, step, events, handlers, state, lambda: f"evaluating, batch {state.batch + 1}")
    figures = stage.figures.read()
    handlers.emit(events.end, figures=figures)
    return figures
