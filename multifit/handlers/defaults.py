"""The default handlers of a fit."""

from __future__ import annotations

from typing import Any, Iterable, Sequence

from ..distributed import World
from ..events import checked_handlers, unwrapped
from .agreement import StopAgreement
from .interrupt import InterruptHandler
from .metric import MetricHandler
from .printing import LoggingHandler, ProgressBar
from .stopping import StoppingHandler
from .validation import ValidationHandler

_WRITING = ("CheckpointHandler", "LoggingHandler")  # Gluon's handlers that write or print


def with_defaults(handlers: object, val_data: Any) -> list[object]:
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


def acting_on(world: World, handlers: Sequence[object]) -> list[object]:
    """Return the handlers that act on this rank, and one that lets all ranks agree on when to stop.

    Handlers that show or write something have ``first_rank_only = True``, and act only on the first rank.
    """
    if world.alone:
        return list(handlers)
    acting = [handler for handler in handlers if world.first or not acts_on_first_rank(handler)]
    return [*acting, StopAgreement()]


def acts_on_first_rank(handler: object) -> bool:
    """Whether a handler shows or writes something, which the first of several ranks does for all."""
    handler = unwrapped(handler)
    kind = type(handler)
    of_gluon = kind.__module__.startswith("mxnet.") and kind.__name__ in _WRITING
    return of_gluon or bool(getattr(handler, "first_rank_only", False))


def validation_data(handlers: Iterable[object]) -> Any:
    """Return the `val_data` of the first handler that has one, or None."""
    candidates = (getattr(unwrapped(handler), "val_data", None) for handler in handlers)
    return next((data for data in candidates if data is not None), None)
