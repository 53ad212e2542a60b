"""Handlers on a watch."""

from __future__ import annotations

from typing import Any, Callable

from ...events import Events, name_of
from .stopwatch import Stopwatch

__all__ = ["TimedEvents"]


class TimedEvents(Events):
    """Calls the handlers, and measures each of them by its name.

    Parameters
    ----------
    estimator : MultiEstimator
        Handed to the handlers.
    handlers : handler or list of handlers, optional
        As `fit` takes them.
    watch : Stopwatch
        Who measures; may be changed from one call to the next.
    """

    def __init__(self, estimator: Any, handlers: Any, watch: Stopwatch) -> None:
        super().__init__(estimator, handlers)
        self.watch = watch

    def _ask(self, moment: str, handler: object, call: Callable[..., Any], takes: Any, facts: Any) -> Any:
        with self.watch("handlers", name_of(handler)):
            return super()._ask(moment, handler, call, takes, facts)
