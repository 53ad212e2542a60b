"""Who hears a run: the handlers of the running fit, or of an evaluation within or beside it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Iterator, Mapping

from ..events import (
    TRAINING_EVENTS,
    EventDispatcher,
    HandlerError,
    PassEvents,
    adapt_for_evaluation,
    handler_name,
)
from ..handlers import ProgressBar, StoppingHandler

__all__ = ["HandlerRunner"]


VIEWS = ("pred", "label", "loss")
LOOKING = ("change_objective", "hold_update")  # what handlers may change by what they see of a batch


class HandlerRunner:
    """Passes the events of a run on to the handlers that are listening, if any.

    Parameters
    ----------
    estimator : MultiEstimator
        Handed to the handlers.
    """

    def __init__(self, estimator: Any) -> None:
        self._estimator = estimator
        self._events: EventDispatcher | None = None

    @property
    def listening(self) -> bool:
        """Whether a fit or an evaluation is running."""
        return self._events is not None

    @property
    def handlers(self) -> list[object]:
        """The handlers that are listening."""
        return [] if self._events is None else self._events.handlers

    def tell(self, event: str, **facts: Any) -> None:
        """Call the handlers of an event."""
        if self._events is not None:
            self._events.emit(event, **facts)

    def looks(self, events: PassEvents) -> bool:
        """Whether a handler looks at a batch's outputs or losses; without handlers, the caller may."""
        within = (events.batch_end, *(LOOKING if events is TRAINING_EVENTS else ()))
        return self._events is None or any(self._events.accepts(each, "pred", "loss") for each in within)

    def tell_result(self, event: str, batch: Any, result: Any) -> None:
        """Call the handlers of a batch's end; its arrays are only sorted out where somebody looks at them."""
        if self._events is not None and self._events.listens(event):
            looked_at = self._events.accepts(event, *VIEWS)
            self._events.emit(event, batch=batch, **(result.views() if looked_at else {}))

    def states(self) -> dict[str, Any]:
        """Return the states of those handlers that have one, by name."""
        return {name: handler.state_dict() for name, handler in self._stateful().items()}

    def load(self, states: Mapping[str, Any]) -> list[str]:
        """Give the handlers their states back; return the names of those that are not there."""
        handlers = self._stateful()
        for name in states.keys() & handlers.keys():
            handlers[name].load_state_dict(states[name])
        return sorted(states.keys() - handlers.keys())

    def reached(self) -> str | None:
        """Return the limit of a `StoppingHandler` that is reached already, or None."""
        limits = [handler for handler in self.handlers if isinstance(handler, StoppingHandler)]
        reasons = (handler.reached(self._estimator) for handler in limits)
        return next((reason for reason in reasons if reason is not None), None)

    def _stateful(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for handler in self.handlers:
            if callable(getattr(handler, "state_dict", None)):
                name = handler_name(handler)
                twins = sum(each.split("#")[0] == name for each in found)
                found[f"{name}#{twins + 1}" if twins else name] = handler
        return found

    @contextmanager
    def fit(self, events: EventDispatcher) -> Iterator[None]:
        """Let `events` hear a fit: that it begins, and that it ends, however it does."""
        self._events = events
        try:
            try:
                events.begin()
                yield
            except BaseException as error:
                self._estimator.state.stop(type(error).__name__)
                try:
                    events.close()
                except HandlerError as second:  # often a consequence; the first error is the one to be seen
                    self._estimator.logger.error("%s", second)
                raise
            events.close()
        finally:
            self._events = None

    @contextmanager
    def evaluation(self, handlers: Any) -> Iterator[None]:
        """Let those hear an evaluation who should: `handlers`, else those of the running fit, else a bar."""
        before = self._events
        if handlers is not None:
            self._events = EventDispatcher(self._estimator, adapt_for_evaluation(handlers))
        elif before is None:
            self._events = EventDispatcher(self._estimator, ProgressBar())
        try:
            yield
        finally:
            self._events = before
