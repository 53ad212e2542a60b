"""One pass over batches, the same for training, evaluating and profiling."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..handlers.dispatcher import EventDispatcher
from ..handlers.handler import PassEvents
from ..handlers.state import RunState
from ..sampling import TaskBatch
from ..utils.errors import DataError, SpecError, TrainerError, note_place
from ..utils.protocols import BatchResult


def run_pass(
    batches: Iterable[Any],
    step: Callable[[Any], BatchResult],
    events: PassEvents,
    handlers: EventDispatcher,
    state: RunState,
    place: Callable[[], str],
    first: int = 0,
) -> int:
    """Run a step on each batch, with the events before and after it, until the state asks to stop.

    Starts counting at `first`, and returns the number of batches done, those before `first` included. The
    counters of `state` are advanced; `place` returns where an error was raised, which it then says.
    """
    index, loader = first, ""
    try:
        for batch in batches:
            state.batch = index
            loader = f", {batch.name}" if isinstance(batch, TaskBatch) else ""
            handlers.emit(events.batch_begin, batch=batch)
            result = step(batch)
            state.count(result.batch.total)
            handlers.emit_result(events.batch_end, batch, result.views)
            del result  # an engine copies a result that is still alive when the next batch runs
            index, loader = index + 1, ""
            if state.stopped:
                break
    except Exception as error:
        state.batch = index  # also if the loader raised in place of yielding that batch
        # problems of the first batch are problems of the declarations, so no place is named
        if state.step or not isinstance(error, (SpecError, DataError, TrainerError)):
            note_place(error, place() + loader)
        raise
    return index
