"""Check which objects can be event handlers, and adapt handlers written for Gluon to evaluations."""

from __future__ import annotations

import inspect
import math
import numbers
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any

from ..errors import quoted, shown, suggest
from ..triggers import Every
from .events import ARGUMENTS, EVALUATION_EVENTS, EVENTS, HOOKS, TRAINING_EVENTS, Priority, implements

MOST = 20  # problems in one message


def checked_handlers(handlers: object, where: str = "event_handlers") -> list[object]:
    """Return one handler, several or None as a list.

    Raises ValueError, with a numbered line per problem, if some cannot be used; `where` is the argument in
    the message.
    """
    if isinstance(handlers, (str, bytes, Mapping)):
        raise ValueError(f"{where} is {shown(handlers)}; valid is a handler or a list of handlers")
    listed = _listed(handlers)
    problems = list(islice(chain(chain.from_iterable(map(_problems, listed)), _repeated(listed)), MOST + 1))
    if problems:
        lines = [f"  {number}. {problem}" for number, problem in enumerate(problems[:MOST], 1)]
        lines += ["  … and more"] * (len(problems) > MOST)
        if not all(map(_implements_any, listed[:MOST])):
            lines.append(f"events and hooks are {quoted(EVENTS + HOOKS)}")
        raise ValueError("\n".join([f"{where} that cannot be used:", *lines]))
    return listed


def _listed(handlers: object) -> list[object]:
    if handlers is None:
        return []
    try:
        # iter() comes first because list() would ask for the length, which may not be valid.
        return list(iter(handlers)) if isinstance(handlers, Iterable) else [handlers]
    except TypeError:  # an array without axes
        return [handlers]


def _repeated(handlers: list[object]) -> Iterator[str]:
    seen: set[int] = set()
    for handler in map(unwrapped, handlers):
        if id(handler) in seen:
            yield f"{handler_name(handler)} is passed twice"
        seen.add(id(handler))


def handler_name(handler: object) -> str:
    """Return the name of the handler's class; for an `Every`, that of the handler it wraps."""
    return type(unwrapped(handler)).__name__


def _problems(handler: object) -> Iterator[str]:
    if isinstance(handler, type):
        yield f"{handler.__name__} is a class; pass an instance, {handler.__name__}(...)"
        return
    # Recognised by name, because this layer does not import mxnet; a subclass does the same harm.
    if any(base.__name__ == "GradientUpdateHandler" for base in type(unwrapped(handler)).__mro__):
        yield (
            f"{handler_name(handler)} would update the parameters a second time: the estimator updates them "
            "after each batch; leave it out, or override fit_batch"
        )
    if not _implements_any(handler):
        yield f"{handler_name(handler)} implements no event or hook{_nearest(handler)}"
    priority = getattr(handler, "priority", Priority.NORMAL)
    if not isinstance(priority, numbers.Real) or math.isnan(priority):
        yield f"{handler_name(handler)} has the priority {shown(priority)}; valid is a number"
    for event in EVENTS + HOOKS:
        if implements(handler, event):
            yield from _signature_problems(handler, event)


def _signature_problems(handler: object, event: str) -> Iterator[str]:
    """Yield a problem if a method cannot be called with the event's arguments that it takes."""
    try:
        signature = inspect.signature(getattr(handler, event))
    except (TypeError, ValueError):  # a compiled function may have no signature
        return
    valid = ARGUMENTS.get(event, ())
    try:
        signature.bind(None, **{name: None for name in valid if name in signature.parameters})
    except TypeError as error:
        more = f", and may take {quoted(valid)} by name" if valid else " alone"
        call = f"{handler_name(handler)}.{event}{signature} cannot be called: {error}"
        yield f"{call}; it must take the estimator{more}"


def _implements_any(handler: object) -> bool:
    return any(implements(handler, event) for event in EVENTS + HOOKS)


def _nearest(handler: object) -> str:
    hints = ((name, suggest(name, EVENTS + HOOKS)) for name in dir(handler) if not name.startswith("_"))
    return "".join(f', but has "{name}"{hint}' for name, hint in hints if hint)


def unwrapped(handler: object) -> object:
    """Return the handler that an `Every` wraps, or the handler itself."""
    while isinstance(handler, Every) and handler.handler is not None:
        handler = handler.handler
    return handler


# In an evaluation, Gluon's Estimator calls the training events.
_GLUON_EVENTS = dict(zip(EVALUATION_EVENTS, TRAINING_EVENTS))


class _EvaluationAdapter:
    """Calls a handler's training events at the events of an evaluation."""

    def __init__(self, handler: object) -> None:
        self.handler = handler
        self.priority = getattr(handler, "priority", Priority.NORMAL)

    def __getattr__(self, name: str) -> Any:
        if name in _GLUON_EVENTS:
            return getattr(self.handler, _GLUON_EVENTS[name])
        raise AttributeError(name)


def adapt_for_evaluation(handlers: object) -> list[object]:
    """Return the handlers to call in an evaluation; raise ValueError if some cannot be used.

    Handlers with methods for an evaluation's events are returned as they are. Handlers that have only methods
    for a training pass are wrapped, so that these methods are called instead, as Gluon's Estimator does.
    Handlers that have neither are left out.
    """
    adapted: list[object] = []
    for handler in checked_handlers(handlers):
        if any(implements(handler, event) for event in _GLUON_EVENTS):
            adapted.append(handler)
        elif any(implements(handler, event) for event in _GLUON_EVENTS.values()):
            adapted.append(_EvaluationAdapter(handler))
    return adapted
