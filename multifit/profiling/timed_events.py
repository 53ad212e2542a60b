"""Handlers on a watch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..events import EventDispatcher, handler_name
from ..events.handler_method import HandlerMethod
from .stopwatch import Stopwatch

__all__ = ["TimedEvents"]


class TimedEvents(EventDispatcher):
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

    def call(self, method: HandlerMethod, facts: Mapping[str, Any]) -> Any:
        """Call one method of a handler and measure it."""
        with self.watch("handlers", handler_name(method.handler)):
            return super().call(method, facts)
