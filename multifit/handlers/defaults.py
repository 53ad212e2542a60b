"""The handlers that every fit has."""

from __future__ import annotations

from typing import Any, Iterable

from ..events import checked_handlers
from ..triggers import Every
from .interrupt import InterruptHandler
from .logging import LoggingHandler
from .metric import MetricHandler
from .progress import ProgressBar
from .stopping import StoppingHandler
from .validation import ValidationHandler

__all__ = ["validation_data", "with_defaults"]


def with_defaults(handlers: object, val_data: Any = None) -> list[object]:
    """Return the handlers given and the defaults that they do not replace.

    Stopping and metrics are always there. Interrupts, logging, progress bars and, with `val_data`, validation
    are left out where a handler of the same name is given, be it Gluon's.
    """
    given = checked_handlers(handlers)
    found: list[object] = [*given, StoppingHandler(), MetricHandler()]
    names = {base.__name__ for handler in given for base in type(_inner(handler)).__mro__}
    if val_data is not None and "ValidationHandler" not in names:
        found.append(ValidationHandler(val_data))
    found += [
        kind() for kind in (InterruptHandler, LoggingHandler, ProgressBar) if kind.__name__ not in names
    ]
    return found


def validation_data(handlers: Iterable[object]) -> Any:
    """Return the data on which one of the handlers will evaluate, or None."""
    found = (getattr(_inner(handler), "val_data", None) for handler in handlers)
    return next((data for data in found if data is not None), None)


def _inner(handler: object) -> object:
    return handler.handler if isinstance(handler, Every) else handler
