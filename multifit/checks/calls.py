"""Checking the number of arguments of a call."""

from __future__ import annotations

import inspect
from typing import Any, Callable, Sequence

from ..errors import counted, names

__all__ = ["arity_problem", "positional"]


def positional(fn: Callable[..., Any], skip: Sequence[str] = ()) -> tuple[list[str], int, bool] | None:
    """Return what a callable takes by position.

    Parameters
    ----------
    fn : callable
        A function or bound method.
    skip : sequence of str
        Parameters that are passed by somebody else (a Block's own parameters, Gluon's ``F``).

    Returns
    -------
    (names, required, variadic) or None
        The parameters' names, how many of them are required, and whether any number is accepted; None if the
        signature cannot be read (built-in functions).
    """
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return None
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    accepted = [p for p in parameters if p.kind in kinds and p.name not in skip]
    variadic = any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters)
    return [p.name for p in accepted], sum(p.default is inspect.Parameter.empty for p in accepted), variadic


def arity_problem(
    where: str,
    fn: Callable[..., Any],
    args: Sequence[str],
    skip: Sequence[str] = (),
    fix: str = "name as many outputs and labels, in that order",
) -> str | None:
    """Return what is wrong with the number of arguments of a call, or None.

    Parameters
    ----------
    where : str
        The name of `fn` in messages.
    fn : callable
        What is called.
    args : sequence of str
        Names of its arguments.
    skip : sequence of str
        See :func:`positional`.
    fix : str
        How to fix it.
    """
    signature = positional(fn, skip)
    if signature is None:
        return None
    parameters, required, variadic = signature
    if len(args) >= required and (len(args) <= len(parameters) or variadic):
        return None
    counts = f"{required} to {len(parameters)}" if required != len(parameters) else str(required)
    if variadic:
        counts, parameters = f"at least {required}", [*parameters, "..."]
    call = f"is called with {counted(len(args), 'argument')} ({names(args)})"
    return f"{where}: {call}, but takes {counts}: ({', '.join(parameters)}); {fix}"
