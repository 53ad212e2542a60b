"""The hooks by which handlers change a training step, from the batch to the update."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from ..errors import names, suggest
from .dispatcher import EventDispatcher, HandlerError
from .events import HOOKS
from .handler_method import HandlerMethod
from .handler_validation import handler_name


class TrainingHooks:
    """Calls the hooks of handlers, in order of priority; each sees what the one before it returned.

    Hooks are called in training only: an evaluation measures the data and the net as they are. A hook that
    raises, or returns something other than a dict of the arrays that it may replace, is a HandlerError.
    """

    def __init__(self, events: EventDispatcher) -> None:
        self._events = events

    def active(self, *hooks: str) -> bool:
        """Return whether any handler implements one of `hooks`; by default, any hook but ``around_fit``."""
        hooks = hooks or tuple(hook for hook in HOOKS if hook != "around_fit")
        return any(self._events.listens(hook) for hook in hooks)

    def change_batch(self, slots: Mapping[str, Any]) -> dict[str, Any]:
        """Return one device's slots as they are passed to the net and the losses."""
        for method in self._events.methods("change_batch"):
            slots = _replaced(method, slots, self._events.call(method, {"slots": dict(slots)}))
        return dict(slots)

    def change_outputs(self, outputs: Mapping[str, Any], slots: Mapping[str, Any]) -> dict[str, Any]:
        """Return one device's outputs as they are passed to the losses and metrics."""
        for method in self._events.methods("change_outputs"):
            replacements = self._events.call(method, {"outputs": dict(outputs), "slots": slots})
            outputs = _replaced(method, outputs, replacements)
        return dict(outputs)

    def change_objective(self, objectives: list[Any], **views: Any) -> list[Any]:
        """Return the arrays whose sum is minimised, one per device; `views` are pred, label and loss."""
        for method in self._events.methods("change_objective"):
            changed = self._events.call(method, {"objectives": objectives, **views})
            objectives = objectives if changed is None else list(changed)
        return objectives

    def hold_update(self, **facts: Any) -> bool:
        """Return whether a handler holds the trainers' update back; all handlers are called."""
        answers = [self._events.call(method, facts) for method in self._events.methods("hold_update")]
        return any(map(bool, answers))

    def change_gradients(self) -> None:
        """Let handlers change the gradients in place."""
        self._events.emit("change_gradients")

    @contextmanager
    def around(self, what: str) -> Iterator[None]:
        """Enter the handlers' context managers around a "step", an "evaluation" or a "fit"."""
        with ExitStack() as stack:
            for method in self._events.methods(f"around_{what}"):
                manager = self._events.call(method, {})
                try:
                    stack.enter_context(manager)
                except Exception as error:
                    raise self._events.handler_error(method, error) from error
            yield


def _replaced(method: HandlerMethod, arrays: Mapping[str, Any], replacements: Any) -> Mapping[str, Any]:
    """Return `arrays` with a hook's replacements, which must have the same names."""
    hook = f"{handler_name(method.handler)}.{method.event}"
    if replacements is None:
        return arrays
    if not isinstance(replacements, Mapping):
        raise HandlerError(
            f"{hook} returned {type(replacements).__name__}; return a dict of the arrays to replace, or None"
        )
    for name in replacements:
        if name not in arrays:
            near = suggest(str(name), arrays)
            raise HandlerError(f'{hook} returned "{name}"{near}; valid are {names(arrays)}')
    return {**arrays, **replacements}
