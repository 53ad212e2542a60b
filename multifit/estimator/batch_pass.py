"""One pass over batches: the same for training and evaluating, which differ by their step and events."""

from __future__ import annotations

from typing import Any, Callable, Iterable

from ..errors import UserCodeError
from ..events import PassEvents
from ..gluon.execution.result import StepResult
from ..state import RunState
from .handler_runner import HandlerRunner

__all__ = ["run_pass"]


def run_pass(
    batches: Iterable[Any],
    step: Callable[[Any], StepResult],
    events: PassEvents,
    handlers: HandlerRunner,
    state: RunState,
    place: Callable[[], str],
    first: int = 0,
) -> int:
    """Run a step on each batch, with the events before and after it, until the state asks to stop.

    Parameters
    ----------
    batches : iterable
        As the loader yields them.
    step : callable
        ``step(batch) -> StepResult``.
    events : PassEvents
        The names of the events.
    handlers : HandlerRunner
        Calls the handlers.
    state : RunState
        Its counters are advanced.
    place : callable
        Returns where an error was raised.
    first : int
        Index of the first batch.

    Returns
    -------
    int
        The number of batches done, those before `first` included.
    """
    index = first
    for batch in batches:
        state.batch = index
        handlers.emit(events.batch_begin, batch=batch)
        try:
            result = step(batch)
        except UserCodeError as error:
            error.at(place())
            raise
        index += 1
        state.step += 1
        state.samples += result.batch.samples
        handlers.emit_result(events.batch_end, batch, result)
        if state.stopped:
            break
    return index
