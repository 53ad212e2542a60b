"""Errors of the user's own net, loss, metric or function, with the place where they were raised."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Callable, Iterator

from ..checks import describe
from ..errors import UserCodeError, last_line

__all__ = ["user_code"]


@contextmanager
def user_code(where: Callable[[], str], *arguments: tuple[str, Any]) -> Iterator[None]:
    """Chain what the user's own code raises to one line that says where we were and with which arrays."""
    try:
        yield
    except Exception as error:
        shown = ", ".join(f"{name} {describe.structure(value)}" for name, value in arguments)
        given = f", called with {shown}" if shown else ""
        raise UserCodeError(f"{where()} raised {type(error).__name__}{given}: {last_line(error)}") from error
