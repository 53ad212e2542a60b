"""Let handlers written for Gluon's Estimator take part in an evaluation."""

from __future__ import annotations

from typing import Any

from .events import EVALUATION_EVENTS, TRAINING_EVENTS, Priority, implements
from .handler_validation import checked_handlers

# In an evaluation, Gluon's Estimator calls the training events.
_GLUON_EVENTS = dict(zip(EVALUATION_EVENTS[1:], TRAINING_EVENTS[1:]))


class _EvaluationAdapter:
    """Calls a handler's training events at the events of an evaluation."""

    def __init__(self, handler: object) -> None:
        self.handler = handler
        self.priority = getattr(handler, "priority", Priority.NORMAL)

    def __getattr__(self, name: str) -> Any:
        if name in _GLUON_EVENTS:
            return getattr(self.handler, _GLUON_EVENTS[name])
        raise AttributeError(name)


def adapt_for_evaluation(handlers: object) -> list[object]:
    """Return the handlers to call in an evaluation; raise ValueError if some cannot be used.

    Handlers with methods for an evaluation's events are returned as they are. Handlers that have only those
    of a training pass are wrapped, so that these are called instead, as Gluon's Estimator does. Handlers that
    have neither are left out.
    """
    adapted: list[object] = []
    for handler in checked_handlers(handlers):
        if any(implements(handler, event) for event in _GLUON_EVENTS):
            adapted.append(handler)
        elif any(implements(handler, event) for event in _GLUON_EVENTS.values()):
            adapted.append(_EvaluationAdapter(handler))
    return adapted
