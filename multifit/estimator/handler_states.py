"""Names and options of the handlers of a fit."""

from __future__ import annotations

import inspect
from typing import Any, Iterable

from ..events import handler_name, unwrapped


def by_name(handlers: Iterable[Any]) -> dict[str, Any]:
    """Return handlers by the names of their classes, with the figure that they monitor, if any.

    If a name comes again, it is numbered: ``EarlyStoppingHandler(val_loss)#2``.
    """
    named: dict[str, Any] = {}
    for handler in handlers:
        monitored = getattr(unwrapped(handler), "monitor", None)
        name = handler_name(handler) + ("" if monitored is None else f"({_text(monitored)})")
        same_name = sum(each.partition("#")[0] == name for each in named)
        named[f"{name}#{same_name + 1}" if same_name else name] = handler
    return named


def options_of(handler: object) -> dict[str, str]:
    """Return the constructor arguments that a handler keeps as attributes of the same names, as text."""
    inner = unwrapped(handler)
    try:
        names = list(inspect.signature(type(inner)).parameters)
    except ValueError:  # a compiled class may have no signature
        names = []
    attributes = getattr(inner, "__dict__", {})
    options = {name: _text(attributes[name]) for name in names if name in attributes}
    return options if inner is handler else {**options, "Every": repr(handler)}


def _text(value: Any) -> str:
    if value is None or isinstance(value, (str, int, float)):
        return repr(value)
    if isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value):
        return repr(list(value))
    return getattr(value, "__name__", type(value).__name__)
