"""Call handlers at the events of a run, and at the hooks by which they change a training step."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from ..utils.errors import HandlerError, note_call, user_code
from ..utils.protocols import MultiEstimator
from ..utils.text import counted, quoted, suggest
from .checked_handlers import checked_handlers
from .handler import (
    AFTER_LAST_BATCH,
    EVENTS,
    HOOKS,
    OUTSIDE,
    TRAINING_EVENTS,
    PassEvents,
    attribute,
    handler_name,
    implements,
)

VIEWS = ("pred", "label", "loss", "present")  # arguments of a batch's end that its result holds
_CAN_STOP = ("batch_end", "epoch_end")  # a true return value of these methods stops the run


@dataclass(frozen=True)
class HandlerMethod:
    """A handler's bound method for an event or hook, and the arguments that it accepts (None: all)."""

    handler: object
    event: str
    function: Callable[..., Any]
    parameters: frozenset[str] | None

    @property
    def name(self) -> str:
        """The method's name, with that of its class."""
        return f"{handler_name(self.handler)}.{self.event}"

    def accepts(self, *names: str) -> bool:
        """Return whether the method accepts at least one of the arguments with these names."""
        return self.parameters is None or not self.parameters.isdisjoint(names)

    def call(self, estimator: object, arguments: Mapping[str, Any]) -> Any:
        """Call the method with those arguments that it accepts, and return its result."""
        if self.parameters is None:
            return self.function(estimator, **arguments)
        accepted = {name: arguments[name] for name in self.parameters if name in arguments}
        return self.function(estimator, **accepted)


def _handler_method(handler: object, event: str) -> HandlerMethod:
    """Return the method of `handler` for `event`.

    A method with ``**arguments`` accepts all of them. ``**_`` accepts none: the underscore says that the
    method does not read them, so they need not be computed.
    """
    method = getattr(handler, event)
    try:
        parameters = list(inspect.signature(method).parameters.values())
    except (TypeError, ValueError):  # a compiled function may have no signature
        return HandlerMethod(handler, event, method, None)
    if any(each.kind is each.VAR_KEYWORD and not each.name.startswith("_") for each in parameters):
        return HandlerMethod(handler, event, method, None)
    return HandlerMethod(handler, event, method, frozenset(each.name for each in parameters[1:]))


class EventDispatcher:
    """Calls handlers for the events and hooks that they implement, in order of priority.

    A handler's method is called as ``handler.epoch_end(estimator, **arguments)``, with those arguments of the
    event that its signature accepts. Raises ValueError, which lists all problems, if some handlers cannot be
    used.
    """

    def __init__(self, estimator: MultiEstimator, handlers: object = None) -> None:
        self.handlers = sorted(checked_handlers(handlers), key=lambda each: attribute(each, "priority"))
        self._estimator = estimator
        self._begun: list[object] = []
        self._methods = {
            event: [
                _handler_method(handler, event) for handler in self.handlers if implements(handler, event)
            ]
            for event in (*EVENTS, *HOOKS, AFTER_LAST_BATCH)
        }
        self._taking_views = {event for event in self._methods if self.accepts(event, *VIEWS)}

    def methods(self, event: str) -> list[HandlerMethod]:
        """Return the handlers' methods for `event`, in the order in which to :meth:`call` them."""
        return self._methods[event]

    def accepts(self, event: str, *names: str) -> bool:
        """Return whether any handler of `event` accepts one of the arguments with these names."""
        return any(method.accepts(*names) for method in self._methods[event])

    def takes_outputs(self, events: PassEvents) -> bool:
        """Return whether a handler takes a batch's outputs or losses."""
        hooks = ("change_objective", "hold_update") if events is TRAINING_EVENTS else ()
        return any(self.accepts(name, "pred", "loss") for name in (events.batch_end, *hooks))

    def emit(self, event: str, **arguments: Any) -> None:
        """Call all handlers that implement `event`.

        A true value returned by ``batch_end`` or ``epoch_end`` stops the run, by default with the handler's
        name as the reason. An exception is raised as it is, with a note that names the handler.
        """
        for method in self._methods[event]:
            answer = self.call(method, arguments)
            if event in _CAN_STOP and answer:
                self._estimator.state.stop(handler_name(method.handler))

    def emit_result(self, event: str, batch: Any, views: Callable[[], Mapping[str, Any]]) -> None:
        """Call the handlers of a batch's end; `views` returns its arrays by name, if a handler takes them."""
        if self._methods[event]:
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

    def call(self, method: HandlerMethod, arguments: Mapping[str, Any]) -> Any:
        """Call one method of a handler and return its result; raises as :meth:`emit` does."""
        try:  # faster than a block
            return method.call(self._estimator, arguments)
        except Exception as error:
            note_call(error, self.where(method))
            raise

    def where(self, method: HandlerMethod) -> str:
        """Return a handler's method, and where in the run it is called, in words."""
        if method.event == "epoch_begin":
            return f"{method.name} (epoch {self._estimator.state.epoch + 1})"
        return method.name if method.event in OUTSIDE else f"{method.name} ({self._estimator.state.place})"


class TrainingHooks:
    """Calls the hooks of handlers, in order of priority; each sees what the one before it returned.

    Hooks are called in training only: an evaluation measures the data and the net as they are.
    """

    def __init__(self, events: EventDispatcher) -> None:
        self._events = events

    def active(self, *hooks: str) -> bool:
        """Return whether any handler implements one of `hooks`."""
        return any(self._events.methods(hook) for hook in hooks)

    def names(self, hook: str) -> str:
        """Return the names of the handlers that implement a hook."""
        return ", ".join(handler_name(method.handler) for method in self._events.methods(hook))

    @property
    def handle_non_finite(self) -> bool:
        """Whether a handler, such as SkipNonFinite, takes care of batches with NaN itself."""
        return any(attribute(handler, "handles_non_finite") for handler in self._events.handlers)

    @property
    def blending(self) -> str:
        """The names of the handlers that replace a share of each loss by another one, such as MixUp."""
        return ", ".join(handler_name(h) for h in self._events.handlers if attribute(h, "blends_losses"))

    def change_batch(self, slots: Mapping[str, Any], batch_axis: int = 0) -> dict[str, Any]:
        """Return one device's slots as they are passed to the net and the losses.

        Raises HandlerError if a handler returns an unknown slot, or another number of samples.
        """
        for method in self._events.methods("change_batch"):
            changed = _replaced(method, slots, self._events.call(method, {"slots": dict(slots)}))
            _check_samples(method, slots, changed, batch_axis)
            slots = changed
        return dict(slots)

    def change_outputs(self, outputs: Mapping[str, Any], slots: Mapping[str, Any]) -> dict[str, Any]:
        """Return one device's outputs as they are passed to the losses and metrics.

        Raises HandlerError if a handler returns an unknown output.
        """
        for method in self._events.methods("change_outputs"):
            answer = self._events.call(method, {"outputs": dict(outputs), "slots": slots})
            outputs = _replaced(method, outputs, answer)
        return dict(outputs)

    def change_objective(self, objectives: list[Any], **views: Any) -> list[Any]:
        """Return the arrays whose sum is minimised; `views` are pred, label, loss and scale."""
        for method in self._events.methods("change_objective"):
            changed = self._events.call(method, {"objectives": objectives, **views})
            objectives = objectives if changed is None else list(changed)
        return objectives

    def hold_update(self, **arguments: Any) -> bool:
        """Return whether a handler holds the trainers' update back; all handlers are called."""
        answers = [self._events.call(each, arguments) for each in self._events.methods("hold_update")]
        return any(answers)

    def change_gradients(self) -> None:
        """Let handlers change the gradients in place."""
        self._events.emit("change_gradients")

    def around(self, what: str) -> AbstractContextManager[None]:
        """Return the handlers' context managers around a "step", an "evaluation" or a "fit", as one."""
        return self._around(f"around_{what}") if self.active(f"around_{what}") else nullcontext()

    @contextmanager
    def _around(self, hook: str) -> Iterator[None]:
        with ExitStack() as stack:
            for method in self._events.methods(hook):
                manager = self._events.call(method, {})
                with user_code(partial(self._events.where, method)):
                    stack.enter_context(manager)
            yield


def _replaced(method: HandlerMethod, arrays: Mapping[str, Any], answer: Any) -> Mapping[str, Any]:
    """Return `arrays` with those that a hook returned in their place."""
    for name in answer or ():
        if name not in arrays:
            near, valid = suggest(name, arrays), quoted(arrays)
            raise HandlerError(f'{method.name} returned "{name}"{near}; valid are {valid}')
    return {**arrays, **answer} if answer else arrays


def _check_samples(
    method: HandlerMethod, before: Mapping[str, Any], after: Mapping[str, Any], batch_axis: int
) -> None:
    """Raise HandlerError unless each slot that was replaced has as many samples as the slots before."""
    samples = next(array.shape[batch_axis] for array in before.values() if array is not None)
    for name, array in after.items():
        if array is not before[name] and array is not None and array.shape[batch_axis] != samples:
            raise HandlerError(
                f'{method.name} returned "{name}" of shape {array.shape}, but the slots hold '
                f"{counted(samples, 'sample')} along axis {batch_axis}; leave samples out in the loader"
            )


NO_HOOKS = TrainingHooks(EventDispatcher(cast(Any, None), []))
"""Those of a fit without handlers that change a step."""
