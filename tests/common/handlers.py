"""Handlers that many tests use."""

from __future__ import annotations

from typing import Any


def handler(name: str = "Handler", priority: Any = None, **methods: Any) -> Any:
    """Make a handler whose class is called `name`; `methods` are its methods, without self."""
    body = {event: staticmethod(method) for event, method in methods.items()}
    if priority is not None:
        body["priority"] = priority
    return type(name, (), body)()


def nothing(estimator: Any, **arguments: Any) -> None:
    """Do nothing."""


class PowerCut(Exception):
    """Ends a fit."""


class CutsPower:
    """Ends a fit after a batch, and after what the other handlers save of it."""

    priority = 5000

    def __init__(self, step: int) -> None:
        self.step = step

    def batch_end(self, estimator: Any, **arguments: Any) -> None:
        if estimator.state.step == self.step:
            raise PowerCut
