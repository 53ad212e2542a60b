"""Which objects can be event handlers."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Iterator

from ..errors import names, suggest
from ..triggers import Every
from .moments import CHANGES, MOMENTS, Priority, implements

__all__ = ["name_of", "vetted"]


def vetted(handlers: object) -> list[object]:
    """Return the handlers as a list.

    Parameters
    ----------
    handlers : object or iterable of object, optional
        One handler, several, or None.

    Raises
    ------
    ValueError
        Some cannot be used. The message has a numbered line for each of these.
    """
    found = [] if handlers is None else list(handlers) if isinstance(handlers, Iterable) else [handlers]
    problems = [problem for handler in found for problem in _problems(handler)]
    problems += [
        f"{name_of(handler)} is given twice" for i, handler in enumerate(found) if _among(handler, found[:i])
    ]
    if problems:
        lines = (f"  {i}. {problem}" for i, problem in enumerate(problems, 1))
        raise ValueError("\n".join(["event_handlers that cannot be used:", *lines]))
    return found


def name_of(handler: object) -> str:
    """Return the name of the handler's class; with a rhythm, of the handler that has it."""
    return type(_unwrapped(handler)).__name__


def _problems(handler: object) -> Iterator[str]:
    if isinstance(handler, type):
        yield f"{handler.__name__} is a class; pass an instance, {handler.__name__}(...)"
        return
    # Known by name: this layer does not import mxnet, and a subclass of the user's would do the same harm.
    if any(base.__name__ == "GradientUpdateHandler" for base in type(_unwrapped(handler)).__mro__):
        yield (
            f"{name_of(handler)} would step twice: the estimator itself moves the parameters after each "
            "batch; leave it out, or override fit_batch"
        )
    if not any(implements(handler, moment) for moment in MOMENTS + CHANGES):
        valid = names(MOMENTS + CHANGES)
        yield f"{name_of(handler)} has none of the moments{_nearest(handler)}; valid are {valid}"
    priority = getattr(handler, "priority", Priority.NORMAL)
    if not isinstance(priority, numbers.Real) or math.isnan(priority):
        yield f"{name_of(handler)} has the priority {priority!r}; valid is a number"


def _nearest(handler: object) -> str:
    hints = ((name, suggest(name, MOMENTS + CHANGES)) for name in dir(handler) if not name.startswith("_"))
    return "".join(f', but "{name}"{hint}' for name, hint in hints if hint)


def _unwrapped(handler: object) -> object:
    while isinstance(handler, Every) and handler.handler is not None:
        handler = handler.handler
    return handler


def _among(handler: object, others: Iterable[object]) -> bool:
    return any(_unwrapped(handler) is _unwrapped(other) for other in others)
