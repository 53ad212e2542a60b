"""Who hears a run: the handlers of the running fit, or of an evaluation within or beside it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Iterator, Mapping, NamedTuple

from ..events import Events, HandlerError, echoing, name_of
from ..handlers import ProgressBar, StoppingHandler

__all__ = ["EVALUATE", "TRAIN", "Audience", "Moments"]


VIEWS = ("pred", "label", "loss")
LOOKING = ("change_objective", "hold_update")  # what handlers may change by what they see of a batch


class Moments(NamedTuple):
    """The stage and the moments of a pass over data."""

    stage: str
    begin: str
    batch_begin: str
    batch_end: str
    end: str


TRAIN = Moments("train", "epoch_begin", "batch_begin", "batch_end", "epoch_end")
EVALUATE = Moments("evaluate", "evaluate_begin", "evaluate_batch_begin", "evaluate_batch_end", "evaluate_end")


class Audience:
    """Passes the moments of a run on to the handlers that are listening, if any.

    Parameters
    ----------
    estimator : MultiEstimator
        Handed to the handlers.
    """

    def __init__(self, estimator: Any) -> None:
        self._estimator = estimator
        self._events: Events | None = None

    @property
    def listening(self) -> bool:
        """Whether a fit or an evaluation is running."""
        return self._events is not None

    @property
    def handlers(self) -> list[object]:
        """The handlers that are listening."""
        return [] if self._events is None else self._events.handlers

    def tell(self, moment: str, **facts: Any) -> None:
        """Call the handlers of a moment."""
        if self._events is not None:
            self._events.emit(moment, **facts)

    def looks(self, moments: Moments) -> bool:
        """Whether a handler looks at a batch's outputs or losses; without handlers, the caller may."""
        within = (moments.batch_end, *(LOOKING if moments is TRAIN else ()))
        return self._events is None or any(self._events.takes(each, "pred", "loss") for each in within)

    def tell_result(self, moment: str, batch: Any, result: Any) -> None:
        """Call the handlers of a batch's end; its arrays are only sorted out where somebody looks at them."""
        if self._events is not None and self._events.listens(moment):
            looked_at = self._events.takes(moment, *VIEWS)
            self._events.emit(moment, batch=batch, **(result.views() if looked_at else {}))

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
                name = name_of(handler)
                twins = sum(each.split("#")[0] == name for each in found)
                found[f"{name}#{twins + 1}" if twins else name] = handler
        return found

    @contextmanager
    def fit(self, events: Events) -> Iterator[None]:
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
            self._events = Events(self._estimator, echoing(handlers))
        elif before is None:
            self._events = Events(self._estimator, ProgressBar())
        try:
            yield
        finally:
            self._events = before
