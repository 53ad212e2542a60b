"""One pass over batches, the same for training, evaluating and profiling."""

from __future__ import annotations

from typing import Any, Callable, Iterable, Mapping, Protocol

from .errors import DataError, SpecError, TrainerError, UserCodeError
from .events import PassEvents
from .protocols import BatchResult
from .sampling import TaskBatch
from .state import RunState


class Emitter(Protocol):
    """Calls the handlers of an event."""

    def emit(self, event: str, **arguments: Any) -> object:
        """Call them with the arguments of an event."""

    def emit_result(self, event: str, batch: Any, views: Callable[[], Mapping[str, Any]]) -> None:
        """Call the handlers of a batch's end; `views` returns its arrays by name, if a handler takes them."""


def run_pass(
    batches: Iterable[Any],
    step: Callable[[Any], BatchResult],
    events: PassEvents,
    handlers: Emitter,
    state: RunState,
    place: Callable[[], str] | None,
    first: int = 0,
) -> int:
    """Run a step on each batch, with the events before and after it, until the state asks to stop.

    Starts counting at `first`, and returns the number of batches done, those before `first` included. The
    counters of `state` are advanced; `place` returns where the step raised an error, to name in its message.
    """
    index = first
    for batch in batches:
        state.batch = index
        handlers.emit(events.batch_begin, batch=batch)
        try:
            result = step(batch)
        except (UserCodeError, SpecError, DataError, TrainerError) as error:
            # problems of the first batch are problems of the declarations, so no place is named
            if place is not None and (state.step or isinstance(error, UserCodeError)):
                loader = f", {batch.name}" if isinstance(batch, TaskBatch) else ""
                error.at(place() + loader)
            raise
        index += 1
        state.count(result.batch.total)
        handlers.emit_result(events.batch_end, batch, result.views)
        del result  # an engine copies a result that is still alive when the next batch runs
        if state.stopped:
            break
    return index
