"""Call the handlers of an event."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from ..errors import note_call, user_code
from ..protocols import MultiEstimator
from .events import (
    AFTER_LAST_BATCH,
    BEFORE_UPDATE,
    EVENTS,
    HOOKS,
    OUTSIDE,
    TRAINING_EVENTS,
    PassEvents,
    Priority,
    implements,
    priority_of,
)
from .handler_validation import checked_handlers, handler_name

VIEWS = ("pred", "label", "loss")  # arguments of a batch's end that are taken from the batch's result
HOOKS_WITH_OUTPUTS = ("change_objective", "hold_update", BEFORE_UPDATE)  # may take outputs and losses
_CAN_STOP = ("batch_end", "epoch_end", BEFORE_UPDATE)  # a true return value of these methods stops the run


@dataclass(frozen=True)
class HandlerMethod:
    """A handler's bound method for an event or hook, and the arguments that it accepts (None: all)."""

    handler: object
    event: str
    function: Callable[..., Any]
    parameters: frozenset[str] | None

    def accepts(self, *names: str) -> bool:
        """Return whether the method accepts at least one of the arguments with these names."""
        return self.parameters is None or not self.parameters.isdisjoint(names)

    def call(self, estimator: object, arguments: Mapping[str, Any]) -> Any:
        """Call the method with those arguments that it accepts, and return its result."""
        if self.parameters is None:
            return self.function(estimator, **arguments)
        accepted = {name: arguments[name] for name in self.parameters if name in arguments}
        return self.function(estimator, **accepted)


def handler_method(handler: object, event: str) -> HandlerMethod:
    """Return the method of `handler` for `event`.

    A method with ``**arguments`` accepts all of them. ``**_`` accepts none: the underscore says that the
    method does not read them, so they need not be computed.
    """
    method = getattr(handler, event)
    return HandlerMethod(handler, event, method, _accepted(method))


def _accepted(method: Callable[..., Any]) -> frozenset[str] | None:
    try:
        parameters = inspect.signature(method).parameters.values()
    except (TypeError, ValueError):  # a compiled function may have no signature
        return None
    keywords = [parameter.name for parameter in parameters if parameter.kind is parameter.VAR_KEYWORD]
    if keywords and not keywords[0].startswith("_"):
        return None
    return frozenset(parameter.name for parameter in list(parameters)[1:])


class EventDispatcher:
    """Calls handlers for the events and hooks that they implement, in order of priority.

    A handler's method is called as ``handler.epoch_end(estimator, **arguments)``, with those arguments of the
    event that its signature accepts. The ``batch_end`` of handlers with a priority up to `Priority.UPDATE`
    belongs to `BEFORE_UPDATE`, because Gluon's Estimator calls it between backward and update. Raises
    ValueError, which lists all problems, if some handlers cannot be used.
    """

    def __init__(self, estimator: MultiEstimator, handlers: object = None) -> None:
        self.handlers = sorted(checked_handlers(handlers), key=priority_of)
        self._estimator = estimator
        self._begun: list[object] = []
        self._methods = {
            event: [handler_method(handler, event) for handler in self.handlers if implements(handler, event)]
            for event in (*EVENTS, *HOOKS, AFTER_LAST_BATCH)
        }
        ends = self._methods["batch_end"]
        early = [method for method in ends if priority_of(method.handler) <= Priority.UPDATE]
        self._methods["batch_end"], self._methods[BEFORE_UPDATE] = ends[len(early) :], early
        self._taking_views = {event for event in self._methods if self.accepts(event, *VIEWS)}

    def listens(self, event: str) -> bool:
        """Return whether any handler implements `event`."""
        return bool(self._methods[event])

    def accepts(self, event: str, *names: str) -> bool:
        """Return whether any handler of `event` accepts one of the arguments with these names."""
        return any(method.accepts(*names) for method in self._methods[event])

    def takes_outputs(self, events: PassEvents) -> bool:
        """Return whether a handler takes a batch's outputs or losses."""
        names = (events.batch_end, *(HOOKS_WITH_OUTPUTS if events is TRAINING_EVENTS else ()))
        return any(self.accepts(name, "pred", "loss") for name in names)

    def emit(self, event: str, **arguments: Any) -> None:
        """Call all handlers that implement `event`.

        A true value returned by ``batch_end`` or ``epoch_end`` stops the run, by default with the handler's
        name as the reason. An exception is raised as it is, with a note that names the handler.
        """
        for method in self._methods[event]:
            answer = self.call(method, arguments)
            if event in _CAN_STOP and self.is_true(method, answer):
                self._estimator.state.stop(handler_name(method.handler))

    def emit_result(self, event: str, batch: Any, views: Callable[[], Mapping[str, Any]]) -> None:
        """Call the handlers of a batch's end; `views` returns its arrays by name, if a handler takes them."""
        if self.listens(event):
            self.emit(event, batch=batch, **(views() if event in self._taking_views else {}))

    def begin(self) -> None:
        """Call ``train_begin`` of all handlers that implement it.

        If one raises, :meth:`close` skips the handlers after it: for them, training never began.
        """
        self._begun = [handler for handler in self.handlers if not implements(handler, "train_begin")]
        for method in self._methods["train_begin"]:
            self._begun.append(method.handler)
            self.call(method, {})

    def close(self) -> None:
        """Call ``train_end`` of all handlers, even if one of them raises; then raise the first error."""
        errors = []
        for method in self._methods["train_end"]:
            try:
                if any(method.handler is handler for handler in self._begun):
                    self.call(method, {})
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def methods(self, event: str) -> list[HandlerMethod]:
        """Return the handlers' methods for `event`, in the order in which to :meth:`call` them."""
        return self._methods[event]

    def within(self, method: HandlerMethod) -> AbstractContextManager[None]:
        """Return a block whose exceptions get a note of the handler, its method, and where in the run."""
        return user_code(lambda: self._where(method))

    def _where(self, method: HandlerMethod) -> str:
        where = f"{handler_name(method.handler)}.{method.event}"
        if method.event == "epoch_begin":
            return f"{where} (epoch {self._estimator.state.epoch + 1})"
        return where if method.event in OUTSIDE else f"{where} ({self._estimator.state.place})"

    def is_true(self, method: HandlerMethod, answer: Any) -> bool:
        """Return whether a method's answer is true; an array of several values raises, as in `emit`."""
        if answer is None:
            return False
        try:  # faster than a block
            return bool(answer)
        except Exception as error:
            note_call(error, self._where(method))
            raise

    def call(self, method: HandlerMethod, arguments: Mapping[str, Any]) -> Any:
        """Call one method of a handler and return its result; raises as :meth:`emit` does."""
        try:  # faster than a block
            return method.call(self._estimator, arguments)
        except Exception as error:
            note_call(error, self._where(method))
            raise
