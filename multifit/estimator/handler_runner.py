"""Runs the handlers of a fit, and saves their states."""

import inspect
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..handlers import CheckpointHandler, ProgressBar, StoppingHandler
from ..handlers.dispatcher import EventDispatcher
from ..handlers.handler import PassEvents, attribute, handler_name, implements, unwrapped
from ..utils.protocols import Array, MultiEstimator


def by_name(handlers: Iterable[Any]) -> dict[str, Any]:
    """Return handlers by the names of their classes, with the figure that they monitor, if any.

    If a name comes again, it is numbered: ``EarlyStoppingHandler(val_loss)#2``.
    """
    named: dict[str, Any] = {}
    for handler in handlers:
        monitored = getattr(unwrapped(handler), "monitor", None)
        name = handler_name(handler) + ("" if monitored is None else f"({_text(monitored)})")
        same_name = sum(each.partition("#")[0] == name for each in named)
        named[f"{name}#{same_name + 1}" if same_name else name] = handler
    return named


def options_of(handler: object) -> dict[str, str]:
    """Return the constructor's arguments that a handler of ours keeps as attributes, as text, but no data."""
    inner = unwrapped(handler)
    attributes = {name: value for name, value in vars(inner).items() if name != "val_data"}
    names = inspect.signature(type(inner)).parameters
    options = {name: _text(attributes[name]) for name in names if name in attributes}
    return options if inner is handler else {**options, "Every": repr(handler)}


def _text(value: Any) -> str:
    if value is None or isinstance(value, (str, int, float)):
        return repr(value)
    if isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value):
        return repr(list(value))
    return getattr(value, "__name__", type(value).__name__)


class HandlerRunner:
    """Passes a run's events on to its handlers; without a run, there are none."""

    def __init__(self, estimator: MultiEstimator) -> None:
        self._estimator = estimator
        self._events = self._idle = EventDispatcher(estimator)
        self.monitored_folder: Path | None = None  # of the last fit's checkpoints, if a figure is monitored

    @property
    def running(self) -> bool:
        """Whether a fit or an evaluation is running."""
        return self._events is not self._idle

    @property
    def handlers(self) -> list[object]:
        """The handlers of the run."""
        return self._events.handlers

    @property
    def dispatcher(self) -> EventDispatcher:
        """What calls the handlers of the pass that begins."""
        return self._events

    def emit(self, event: str, **arguments: Any) -> None:
        """Call the handlers of an event."""
        self._events.emit(event, **arguments)

    def needs_outputs(self, events: PassEvents) -> bool:
        """Whether a handler takes a batch's outputs or losses; True without a run, as the caller may."""
        return not self.running or self._events.takes_outputs(events)

    def limit_reached(self) -> str | None:
        """Return the limit of a `StoppingHandler` that is already reached, or None."""
        limits = [handler for handler in self.handlers if isinstance(handler, StoppingHandler)]
        reasons = (handler.reached(self._estimator) for handler in limits)
        return next((reason for reason in reasons if reason is not None), None)

    def batches_left(self) -> int | None:
        """Return the number of batches until the first limit of a `StoppingHandler`, or None."""
        limits = [handler for handler in self.handlers if isinstance(handler, StoppingHandler)]
        counts = (handler.batches_left(self._estimator) for handler in limits)
        return min((count for count in counts if count is not None), default=None)

    def evaluated_parameters(self) -> dict[str, Array]:
        """Return the values that handlers let evaluations use in place of parameters, by name."""
        of_handlers = [attribute(handler, "evaluated_parameters") for handler in self.handlers]
        return {name: value for values in of_handlers for name, value in values.items()}

    def states(self) -> dict[str, Any]:
        """Return the states of the handlers that have one, by name."""
        return {name: handler.state_dict() for name, handler in self._stateful().items()}

    def load_states(self, states: Mapping[str, Any]) -> list[str]:
        """Load the states of handlers, by name; return the names of those that this fit does not have."""
        handlers = self._stateful()
        for name in states.keys() & handlers.keys():
            handlers[name].load_state_dict(states[name])
        return [name for name in states if name not in handlers]

    def _stateful(self) -> dict[str, Any]:
        return by_name(each for each in self.handlers if implements(each, "state_dict"))

    @contextmanager
    def fit(self, events: EventDispatcher) -> Iterator[None]:
        """Call the handlers of `events` in a fit; ``train_end`` is called however the fit ends."""
        self._events = events
        saving = [each for each in map(unwrapped, events.handlers) if isinstance(each, CheckpointHandler)]
        self.monitored_folder = next((each.folder for each in saving if each.monitor is not None), None)
        try:
            try:
                events.begin()
                yield
            except BaseException as error:
                self._estimator.state.end(type(error).__name__)
                try:
                    events.close()
                except Exception as second:  # often a consequence; the first error is the one to raise
                    self._estimator.logger.error("%s: %s", type(second).__name__, second)
                raise
            events.close()
        finally:
            self._events = self._idle

    @contextmanager
    def evaluation(self, handlers: Any) -> Iterator[None]:
        """Call `handlers` during an evaluation; if None, the running fit's; without a fit, a progress bar."""
        before = self._events
        if handlers is not None:
            self._events = EventDispatcher(self._estimator, handlers)
        elif before is self._idle:
            self._events = EventDispatcher(self._estimator, ProgressBar())
        try:
            yield
        finally:
            self._events = before
