"""A whole evaluation: a pass over data that measures losses and metrics."""

from __future__ import annotations

from typing import Any, Callable, Iterable

from ..batch_pass import Emitter, run_pass
from ..engines import Runner
from ..events import EVALUATION_EVENTS
from ..protocols import BatchResult
from ..stages import EVALUATE
from ..state import RunState


def run_evaluation(
    runner: Runner,
    batches: Iterable[Any],
    total: int | None,
    step: Callable[[Any], BatchResult],
    handlers: Emitter,
) -> dict[str, float]:
    """Measure losses and metrics on batches; return the figures by name, without prefix.

    The evaluation stage is reset first. `total` is the number of batches, if known. Raises RuntimeError if a
    handler evaluates before the figures are complete.
    """
    stage, state, events = runner.engine.stages[EVALUATE], RunState(), EVALUATION_EVENTS
    with stage.figures.alone():
        stage.reset()
        handlers.emit(events.begin, batches=total)
        run_pass(batches, step, events, handlers, state, lambda: f"evaluating, batch {state.batch + 1}")
        runner.join_figures(EVALUATE)
        figures = stage.figures.read()
    handlers.emit(events.end, figures=figures)
    return figures
