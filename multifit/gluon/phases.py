"""The phases of a step, as whoever measures their time sees them."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Callable

__all__ = ["Timer", "untimed"]

# timer(phase, *detail) returns a context manager; the detail is a trainer's or a metric's name
Timer = Callable[..., "AbstractContextManager[Any]"]

_NOTHING: AbstractContextManager[Any] = nullcontext()


def untimed(*phase: str) -> AbstractContextManager[Any]:
    """Measure nothing."""
    return _NOTHING
