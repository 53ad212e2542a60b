"""Handlers written for Gluon's Estimator, heard in an evaluation."""

from __future__ import annotations

from typing import Any

from .moments import Priority, implements
from .vetting import vetted

__all__ = ["echoing"]

ECHOES = {
    "evaluate_begin": "epoch_begin",
    "evaluate_batch_begin": "batch_begin",
    "evaluate_batch_end": "batch_end",
    "evaluate_end": "epoch_end",
}


class _Echo:
    """Calls a handler's training moments at the moments of an evaluation, as Gluon's Estimator does."""

    def __init__(self, handler: Any) -> None:
        self.handler = handler
        self.priority = getattr(handler, "priority", Priority.NORMAL)

    def __getattr__(self, name: str) -> Any:
        if name in ECHOES:
            return getattr(self.handler, ECHOES[name])
        raise AttributeError(name)


def echoing(handlers: object) -> list[object]:
    """Return the handlers for an evaluation: those that know its moments, the others as echoes.

    Raises
    ------
    ValueError
        Some cannot be used.
    """
    found: list[object] = []
    for handler in vetted(handlers):
        if any(implements(handler, moment) for moment in ECHOES):
            found.append(handler)
        elif any(implements(handler, moment) for moment in ECHOES.values()):
            found.append(_Echo(handler))
    return found  # who only hears a training begin or end has nothing to hear in an evaluation
