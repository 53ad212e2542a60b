"""The default handlers of a fit."""

from __future__ import annotations

from typing import Any, Iterable

from ..events import checked_handlers, unwrapped
from .interrupt import InterruptHandler
from .logging import LoggingHandler
from .metric import MetricHandler
from .progress import ProgressBar
from .stopping import StoppingHandler
from .validation import ValidationHandler


def with_defaults(handlers: object, val_data: Any = None) -> list[object]:
    """Return `handlers` and the default handlers that they do not replace.

    Stopping and metrics are always added. Interrupts, logging, progress bars and (with `val_data`) validation
    are added unless `handlers` has one with the same class name, such as Gluon's. Raises ValueError if some
    of the handlers cannot be used.
    """
    users = checked_handlers(handlers)
    names = {base.__name__ for handler in users for base in type(unwrapped(handler)).__mro__}
    defaults: list[object] = [StoppingHandler(), MetricHandler()]
    if val_data is not None and "ValidationHandler" not in names:
        defaults.append(ValidationHandler(val_data))
    kinds = (InterruptHandler, LoggingHandler, ProgressBar)
    return [*users, *defaults, *(kind() for kind in kinds if kind.__name__ not in names)]


def validation_data(handlers: Iterable[object]) -> Any:
    """Return the `val_data` of the first handler that has one, or None."""
    candidates = (getattr(unwrapped(handler), "val_data", None) for handler in handlers)
    return next((data for data in candidates if data is not None), None)
