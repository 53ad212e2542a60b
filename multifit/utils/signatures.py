"""How many arguments a function takes: read before the call, so that its own TypeErrors pass through."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from .text import counted, quoted


def arity_problem(
    where: str,
    fn: Callable[..., Any],
    args: Sequence[str],
    skip: Sequence[str] = (),
    fix: str = "name as many outputs and labels, in that order",
    keywords: Sequence[str] = (),
) -> str | None:
    """Return what is wrong with calling `fn` with `args`, and by name with `keywords`; see `signature_of`."""
    signature = signature_of(fn, skip)
    if signature is None:
        return None
    try:
        signature.bind(*args, **dict.fromkeys(keywords))
    except TypeError as error:
        call = f"{where}: is called with {counted(len(args), 'argument')} ({quoted(args)})"
        return f"{call}, but takes {signature}: {error}; {fix}"
    return None


def signature_of(fn: Callable[..., Any], skip: Sequence[str] = ()) -> inspect.Signature | None:
    """Return a function's signature, without annotations; None if it cannot be read (built-in functions).

    `skip` names parameters that Gluon passes: a Block's own parameters, and ``F``.
    """
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):
        return None
    parameters = [p.replace(annotation=p.empty) for p in signature.parameters.values() if p.name not in skip]
    return signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty)
