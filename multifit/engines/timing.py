"""How tools measure the time of a train step's phases."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, Callable, ContextManager

Timer = Callable[..., ContextManager[Any]]
"""``timer(phase, *detail)`` measures a phase of a step; the detail is a trainer's or a metric's name."""

_NOTHING: ContextManager[Any] = nullcontext()


def untimed(*phase: str) -> ContextManager[Any]:
    """Measure nothing."""
    return _NOTHING
