"""What handlers change on the way of a batch, from the loader to the update."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from ..errors import names, suggest
from .dispatch import Events, HandlerError
from .moments import CHANGES
from .vetting import name_of

__all__ = ["Flow"]


class Flow:
    """Asks the handlers that change what flows, in the order of their priorities.

    Each sees what the one before it left. They are asked while training only; an evaluation measures what is
    there.

    Parameters
    ----------
    events : Events
        Whose handlers are asked.
    """

    def __init__(self, events: Events) -> None:
        self._events = events

    def changes(self, *what: str) -> bool:
        """Whether any handler has one of these methods; by default any that is called within a fit."""
        within = what or [moment for moment in CHANGES if moment != "around_fit"]
        return any(self._events.listens(moment) for moment in within)

    def batch(self, slots: Mapping[str, Any]) -> dict[str, Any]:
        """Return one device's slots as they are to go through net and losses.

        Raises
        ------
        HandlerError
            A handler raised, or returned what is no dict of slots.
        """
        for handler, ask in self._events.askers("change_batch"):
            slots = _replaced(handler, "change_batch", slots, ask(slots=dict(slots)))
        return dict(slots)

    def outputs(self, outputs: Mapping[str, Any], slots: Mapping[str, Any]) -> dict[str, Any]:
        """Return one device's outputs as they are to go to the losses and metrics.

        Raises
        ------
        HandlerError
            A handler raised, or returned what is no dict of outputs.
        """
        for handler, ask in self._events.askers("change_outputs"):
            answer = ask(outputs=dict(outputs), slots=slots)
            outputs = _replaced(handler, "change_outputs", outputs, answer)
        return dict(outputs)

    def objective(self, objectives: list[Any], **views: Any) -> list[Any]:
        """Return the arrays whose sum is to be minimised."""
        for _, ask in self._events.askers("change_objective"):
            answer = ask(objectives=objectives, **views)
            objectives = objectives if answer is None else list(answer)
        return objectives

    def held(self, **facts: Any) -> bool:
        """Return whether the trainers are to leave the parameters as they are; every handler is asked."""
        answers = [ask(**facts) for _, ask in self._events.askers("hold_update")]
        return any(map(bool, answers))

    def gradients(self) -> None:
        """Let the handlers change the gradients in place."""
        self._events.emit("change_gradients")

    @contextmanager
    def around(self, what: str) -> Iterator[None]:
        """Enter what the handlers put around a "step", an "evaluation" or a "fit"; leave it in reverse."""
        moment = f"around_{what}"
        with ExitStack() as stack:
            for handler, ask in self._events.askers(moment):
                manager = ask()
                try:
                    stack.enter_context(manager)
                except Exception as error:
                    raise self._events.named(handler, moment, error) from error
            yield


def _replaced(handler: object, moment: str, arrays: Mapping[str, Any], answer: Any) -> Mapping[str, Any]:
    if answer is None:
        return arrays
    if not isinstance(answer, Mapping):
        raise HandlerError(
            f"{name_of(handler)}.{moment} returned {type(answer).__name__}; "
            "return a dict of what is to be replaced, or None"
        )
    for name in answer:
        if name not in arrays:
            near = suggest(str(name), arrays)
            raise HandlerError(
                f'{name_of(handler)}.{moment} returned "{name}"{near}; valid are {names(arrays)}'
            )
    return {**arrays, **answer}
