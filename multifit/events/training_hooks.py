"""The hooks by which handlers change a training step, from the batch to the update."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, cast

from ..errors import HandlerError
from .dispatcher import EventDispatcher, HandlerMethod
from .events import BEFORE_UPDATE, Priority
from .handler_validation import handler_name
from .hook_answers import check_objectives, check_samples, check_types, replaced


class TrainingHooks:
    """Calls the hooks of handlers, in order of priority; each sees what the one before it returned.

    Hooks are called in training only: an evaluation measures the data and the net as they are. A HandlerError
    is raised if a hook returns something other than a dict of the arrays that it may replace.

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

    def change_batch(self, slots: Mapping[str, Any], batch_axis: int = 0) -> dict[str, Any]:
        """Return one device's slots as they are passed to the net and the losses.

        The number of samples must stay the same.
        """
        for method in self._events.methods("change_batch"):
            changed = replaced(method, slots, self._events.call(method, {"slots": dict(slots)}))
            check_samples(method, slots, changed, batch_axis)
            slots = changed
        return dict(slots)

    def change_outputs(self, outputs: Mapping[str, Any], slots: Mapping[str, Any]) -> dict[str, Any]:
        """Return one device's outputs as they are passed to the losses and metrics."""
        for method in self._events.methods("change_outputs"):
            replacements = self._events.call(method, {"outputs": dict(outputs), "slots": slots})
            changed = replaced(method, outputs, replacements)
            check_types(method, outputs, changed)
            outputs = changed
        return dict(outputs)

    def change_objective(self, objectives: list[Any], **views: Any) -> list[Any]:
        """Return the arrays whose sum is minimised, one per device; `views` are pred, label and loss."""
        for method in self._events.methods("change_objective"):
            changed = self._events.call(method, {"objectives": objectives, **views})
            if changed is not None:
                arrays = self._listed(method, changed)
                check_objectives(method, objectives, arrays)
                objectives = arrays
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
                with self._events.within(method):
                    stack.enter_context(manager)
            yield

    def _listed(self, method: HandlerMethod, answer: Any) -> list[Any]:
        with self._events.within(method):  # it may not be iterable
            return list(answer)

    def names(self, event: str) -> str:
        """Return the names of the handlers that implement a hook."""
        return ", ".join(handler_name(method.handler) for method in self._events.methods(event))


NO_HOOKS = TrainingHooks(EventDispatcher(cast(Any, None), []))
"""Those of a fit without handlers that change a step."""
