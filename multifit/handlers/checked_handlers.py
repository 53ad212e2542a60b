"""Check which objects can be event handlers."""

import difflib
import inspect
import math
import numbers
from collections.abc import Iterable, Iterator, Mapping

from ..utils.text import limited, quoted, shown, suggest
from .handler import ARGUMENTS, EVENTS, HOOKS, Handler, attribute, handler_name, implements, unwrapped
from .triggers import UNITS, Every


def checked_handlers(handlers: object, where: str = "event_handlers") -> list[object]:
    """Return one handler, several or None as a list.

    Raises ValueError, with a numbered line per problem, if some cannot be used; `where` is the argument in
    the message.
    """
    if isinstance(handlers, (str, bytes, Mapping)):
        raise ValueError(f"{where} is {shown(handlers)}; valid is a handler or a list of handlers")
    listed = [] if handlers is None else list(handlers) if isinstance(handlers, Iterable) else [handlers]
    problems = [problem for handler in listed for problem in _problems(handler)]
    inner = [id(unwrapped(handler)) for handler in listed]
    problems += [f"{handler_name(h)} is passed twice" for i, h in enumerate(listed) if inner[i] in inner[:i]]
    if problems:
        lines = limited([f"  {number}. {problem}" for number, problem in enumerate(problems, 1)])
        valid = f"events and hooks are {quoted(ARGUMENTS)}"
        raise ValueError("\n".join([f"{where} that cannot be used:", *lines, valid]))
    return listed


def _problems(handler: object) -> Iterator[str]:
    inner, name = unwrapped(handler), handler_name(handler)
    if isinstance(inner, type):
        yield f"{inner.__name__} is a class; pass an instance, {inner.__name__}(...)"
        return
    methods = [method for method in EVENTS + HOOKS if implements(handler, method)]
    if not methods:
        yield f"{name} implements no event or hook{_nearest(inner)}"
    elif isinstance(inner, Handler):
        yield from _misspelt(inner)
    while methods and isinstance(handler, Every):
        if not any(method in UNITS[handler.unit] for method in methods):
            each = f"{handler.unit}_begin or {handler.unit}_end"
            yield f"{handler!r} would change nothing: {name} has no method such as {each}; use the other unit"
        handler = handler.handler
    priority = attribute(inner, "priority")
    if not isinstance(priority, numbers.Real) or math.isnan(priority):
        yield f"{name} has the priority {shown(priority)}; valid is a number"
    for method in methods:
        yield from _signature_problems(inner, method)


def _nearest(handler: object) -> str:
    hints = ((name, suggest(name, ARGUMENTS)) for name in dir(handler) if not name.startswith("_"))
    return "".join(f', but has "{name}"{hint}' for name, hint in hints if hint and not hasattr(Handler, name))


def _misspelt(handler: Handler) -> Iterator[str]:
    """Yield a problem for each method that has almost the name of an event, beside others that are right."""
    kind, valid = type(handler), [*ARGUMENTS, "state_dict", "load_state_dict"]
    for name in dir(kind):
        if not name.startswith("_") and not hasattr(Handler, name) and callable(getattr(kind, name)):
            for near in difflib.get_close_matches(name, valid, n=1, cutoff=0.85):
                yield f'{kind.__name__} has "{name}", which is no event or hook (did you mean "{near}"?)'


def _signature_problems(handler: object, method: str) -> Iterator[str]:
    """Yield a problem if a method cannot be called with the event's arguments that it takes."""
    try:
        signature = inspect.signature(getattr(handler, method))
    except (TypeError, ValueError):  # a compiled function may have no signature
        return
    valid = ARGUMENTS[method]
    try:
        signature.bind(None, **{name: None for name in valid if name in signature.parameters})
    except TypeError as error:
        more = f", and may take {quoted(valid)} by name" if valid else " alone"
        call = f"{handler_name(handler)}.{method}{signature} cannot be called: {error}"
        yield f"{call}; it must take the estimator{more}"
