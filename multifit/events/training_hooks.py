"""The hooks by which handlers change a training step, from the batch to the update."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, cast

from ..checks import describe
from ..errors import counted, quoted, shown, suggest
from .dispatcher import EventDispatcher, HandlerError, HandlerMethod
from .events import BEFORE_UPDATE, Priority
from .handler_validation import handler_name


class TrainingHooks:
    """Calls the hooks of handlers, in order of priority; each sees what the one before it returned.

    Hooks are called in training only: an evaluation measures the data and the net as they are. A HandlerError
    is raised if a hook raises, or returns something other than a dict of the arrays that it may replace.

    Raises ValueError if one handler holds back updates that others expect after each batch.
    """

    def __init__(self, events: EventDispatcher) -> None:
        self._events = events
        self._batch: Any = None  # of the running step, as the loader yielded it
        self._updates_unseen = False
        if self.active(BEFORE_UPDATE) and self.active("hold_update"):
            early, holding = self.names(BEFORE_UPDATE), self.names("hold_update")
            raise ValueError(
                f"{early}: with a priority up to {Priority.UPDATE:g}, batch_end is called between backward "
                f"and update of each batch, but {holding} holds updates back; implement change_gradients in "
                "place of batch_end: it is called before each update"
            )

    def active(self, *hooks: str) -> bool:
        """Return whether any handler implements one of `hooks`."""
        return any(self._events.listens(hook) for hook in hooks)

    def takes(self, hook: str, argument: str) -> bool:
        """Return whether any handler's method for a hook takes an argument of this name, such as "pred"."""
        return self._events.accepts(hook, argument)

    @property
    def handle_non_finite(self) -> bool:
        """Whether a handler, such as SkipNonFinite, takes care of batches with NaN itself."""
        return any(getattr(handler, "handles_non_finite", False) for handler in self._events.handlers)

    @property
    def blending(self) -> str:
        """The names of the handlers that replace a share of each loss by another one, such as MixUp."""
        blending = [h for h in self._events.handlers if getattr(h, "blends_losses", False)]
        return ", ".join(map(handler_name, blending))

    @property
    def batches_per_update(self) -> int:
        """The number of batches per update, if handlers such as GradientAccumulation add up gradients.

        An update uses the mean. With several such handlers, it waits until none of them holds it back.
        """
        return math.lcm(*(getattr(handler, "batches_per_update", 1) for handler in self._events.handlers))

    def change_batch(self, slots: Mapping[str, Any], batch_axis: int = 0) -> dict[str, Any]:
        """Return one device's slots as they are passed to the net and the losses.

        The number of samples must stay the same.
        """
        for method in self._events.methods("change_batch"):
            changed = _replaced(method, slots, self._events.call(method, {"slots": dict(slots)}))
            _check_samples(method, slots, changed, batch_axis)
            slots = changed
        return dict(slots)

    def change_outputs(self, outputs: Mapping[str, Any], slots: Mapping[str, Any]) -> dict[str, Any]:
        """Return one device's outputs as they are passed to the losses and metrics."""
        for method in self._events.methods("change_outputs"):
            replacements = self._events.call(method, {"outputs": dict(outputs), "slots": slots})
            changed = _replaced(method, outputs, replacements)
            _check_types(method, outputs, changed)
            outputs = changed
        return dict(outputs)

    def change_objective(self, objectives: list[Any], **views: Any) -> list[Any]:
        """Return the arrays whose sum is minimised, one per device; `views` are pred, label and loss."""
        for method in self._events.methods("change_objective"):
            changed = self._events.call(method, {"objectives": objectives, **views})
            objectives = objectives if changed is None else self._objectives(method, objectives, changed)
        return objectives

    def hold_update(self, **arguments: Any) -> bool:
        """Return whether a handler holds the trainers' update back; all handlers are called."""
        answers = [(each, self._events.call(each, arguments)) for each in self._events.methods("hold_update")]
        return any(self._events.is_true(method, answer) for method, answer in answers)

    def before_update(self, views: Callable[[], Mapping[str, Any]]) -> None:
        """Call ``batch_end`` of the handlers that Gluon's Estimator calls between backward and update.

        `views` returns the batch's arrays by name, if a handler takes them.
        """
        self._updates_unseen = False
        self._events.emit_result(BEFORE_UPDATE, self._batch, views)

    def change_gradients(self) -> None:
        """Let handlers change the gradients in place."""
        self._events.emit("change_gradients")

    def step(self, batch: Any) -> AbstractContextManager[None]:
        """Return the handlers' context managers around a step on `batch`, as the loader yielded it, as one.

        It raises HandlerError if the step never called :meth:`before_update`, although handlers need it.
        """
        return self._step(batch) if self.active("around_step", BEFORE_UPDATE) else nullcontext()

    @contextmanager
    def _step(self, batch: Any) -> Iterator[None]:
        self._batch, self._updates_unseen = batch, self.active(BEFORE_UPDATE)
        with self.around("step"):
            yield
        if self._updates_unseen:
            raise HandlerError(
                f"{self.names(BEFORE_UPDATE)} must be called between backward and update, because of a "
                f"priority up to {Priority.UPDATE:g}, but fit_batch did not call super().fit_batch(), which "
                "does that; call it, or raise the priority"
            )

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

    def _objectives(self, method: HandlerMethod, given: list[Any], changed: Any) -> list[Any]:
        """Return the objectives that a handler returned in place of those that it was given."""
        try:
            arrays = list(changed)
        except Exception as error:  # not iterable, or an iterator that raises
            raise self._events.handler_error(method, error) from error
        if given and not arrays:
            raise HandlerError(
                f"{_name(method)} returned no objectives, so that nothing would be trained; return None to "
                "leave them as they are, or leave the batch out in the loader"
            )
        for array in arrays if given else ():
            is_array = isinstance(array, type(given[0]))
            if not is_array or getattr(array, "shape", ()) != getattr(given[0], "shape", ()):
                found = describe.array(array) if is_array else shown(array)
                raise HandlerError(
                    f"{_name(method)} returned {found} among the objectives; return a list of arrays of "
                    "shape (1,), computed from what the handler is given or from parameters: a constant "
                    "would change nothing"
                )
        return arrays

    def names(self, event: str) -> str:
        """Return the names of the handlers that implement a hook."""
        return ", ".join(handler_name(method.handler) for method in self._events.methods(event))


NO_HOOKS = TrainingHooks(EventDispatcher(cast(Any, None), []))
"""Those of a fit without handlers that change a step."""


def _name(method: HandlerMethod) -> str:
    return f"{handler_name(method.handler)}.{method.event}"


def _replaced(method: HandlerMethod, arrays: Mapping[str, Any], replacements: Any) -> Mapping[str, Any]:
    """Return `arrays` with a hook's replacements, which must have the same names."""
    hook = _name(method)
    if replacements is None:
        return arrays
    if not isinstance(replacements, Mapping):
        raise HandlerError(
            f"{hook} returned {type(replacements).__name__}; return a dict of the arrays to replace, or None"
        )
    for name in replacements:
        if name not in arrays:
            near = suggest(str(name), arrays)
            raise HandlerError(f'{hook} returned "{name}"{near}; valid are {quoted(arrays)}')
    kinds = tuple({type(array) for array in arrays.values() if array is not None})
    for name, array in replacements.items():
        if array is not None and not isinstance(array, kinds):
            given = next(each for each in arrays.values() if each is not None)
            raise HandlerError(
                f'{hook} returned "{name}" as {type(array).__module__}.{type(array).__name__}; return '
                f"{type(given).__name__}s, as the handler is given"
            )
    return {**arrays, **replacements}


def _check_types(method: HandlerMethod, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Raise HandlerError unless each output has the same dtype as before."""
    for name, array in after.items():
        given = before[name]
        if array is not given and getattr(array, "dtype", None) != getattr(given, "dtype", None):
            raise HandlerError(
                f'{_name(method)} returned "{name}" as {describe.array(array)}, and the output is '
                f"{describe.array(given)}; return arrays of the same dtype"
            )


def _check_samples(
    method: HandlerMethod, before: Mapping[str, Any], after: Mapping[str, Any], batch_axis: int
) -> None:
    """Raise HandlerError unless each slot that is not None has as many samples as the slots before."""
    samples = next(array.shape[batch_axis] for array in before.values() if array is not None)
    for name, array in after.items():
        if array is before[name] or array is None:
            continue
        if getattr(array, "shape", ())[batch_axis : batch_axis + 1] != (samples,):
            raise HandlerError(
                f'{_name(method)} returned "{name}" as {describe.array(array)}, '
                f"but the slots hold {counted(samples, 'sample')} along axis {batch_axis}; return arrays of "
                "that many samples, and leave others out in the loader"
            )
