"""Whether a callable takes as many arguments as it is given."""

from __future__ import annotations

import inspect
from typing import Any, Callable, Sequence

from ..errors import counted, names

__all__ = ["arity_problem", "positional"]


def positional(fn: Callable[..., Any], skip: Sequence[str] = ()) -> tuple[list[str], int | None, bool] | None:
    """Return what a callable takes by position.

    Parameters
    ----------
    fn : callable
        A function or bound method.
    skip : sequence of str
        Parameters that somebody else passes (a Block's own parameters, Gluon's ``F``).

    Returns
    -------
    (names, required, variadic) or None
        Parameter names, how many of them must be given, and whether any number is taken; None where the
        signature cannot be read (built-in functions).
    """
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return None
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    taken = [p for p in parameters if p.kind in kinds and p.name not in skip]
    variadic = any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters)
    return [p.name for p in taken], sum(p.default is inspect.Parameter.empty for p in taken), variadic


def arity_problem(
    where: str,
    fn: Callable[..., Any],
    given: Sequence[str],
    skip: Sequence[str] = (),
    way: str = "name as many outputs and labels, in that order",
) -> str | None:
    """Return what is wrong with calling `fn` with the arguments named in `given`, or None; `way` mends it."""
    taken = positional(fn, skip)
    if taken is None:
        return None
    parameters, required, variadic = taken
    if len(given) >= (required or 0) and (len(given) <= len(parameters) or variadic):
        return None
    counts = f"{required} to {len(parameters)}" if required != len(parameters) else str(required)
    if variadic:
        counts, parameters = f"at least {required}", [*parameters, "..."]
    found = f"is given {counted(len(given), 'argument')} ({names(given)})"
    return f"{where}: {found}, but takes {counts}: ({', '.join(parameters)}); {way}"
