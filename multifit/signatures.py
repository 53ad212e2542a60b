"""How many arguments a function takes: read before the call, so that its own TypeErrors pass through."""

from __future__ import annotations

import inspect
from typing import Any, Callable, Sequence

from .errors import counted, quoted


def positional(fn: Callable[..., Any], skip: Sequence[str] = ()) -> tuple[list[str], int, bool] | None:
    """Return a callable's positional parameters: their names, how many are required, whether more may follow.

    Returns None if the signature cannot be read (built-in functions). `skip` names parameters that Gluon
    passes: a Block's own parameters, and ``F``.
    """
    parameters = _parameters(fn)
    if parameters is None:
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
    """Return what is wrong with calling `fn` with the arguments named `args`, or None; see `positional`."""
    signature = positional(fn, skip)
    if signature is None:
        return None
    parameters, required, variadic = signature
    call = f"{where}: is called with {counted(len(args), 'argument')} ({quoted(args)})"
    by_keyword = [
        p.name
        for p in _parameters(fn) or ()
        if p.kind is inspect.Parameter.KEYWORD_ONLY and p.default is inspect.Parameter.empty
    ]
    if by_keyword:
        return f"{call}, but needs {quoted(by_keyword)} by keyword; give a default"
    if len(args) >= required and (len(args) <= len(parameters) or variadic):
        return None
    counts = f"{required} to {len(parameters)}" if required != len(parameters) else str(required)
    if variadic:
        counts, parameters = f"at least {required}", [*parameters, "..."]
    return f"{call}, but takes {counts}: ({', '.join(parameters)}); {fix}"


def _parameters(fn: Callable[..., Any]) -> Sequence[inspect.Parameter] | None:
    try:
        return list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        return None
