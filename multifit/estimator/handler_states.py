"""Finds out which handler of a resumed fit a saved state belongs to."""

from __future__ import annotations

import inspect
from typing import Any, Callable, Iterable, Mapping

from ..events import handler_name, unwrapped

Options = Mapping[str, str]


def by_name(handlers: Iterable[Any]) -> dict[str, Any]:
    """Return handlers by the names of their classes; the second of a class is called Kind#2."""
    named: dict[str, Any] = {}
    for handler in handlers:
        name = handler_name(handler)
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


def owners(saved: Mapping[str, Options], here: Mapping[str, Options]) -> dict[str, str]:
    """Return, by the names of the saved states, the names of the handlers here that they belong to.

    `saved` and `here` hold the options of handlers. First, states are matched with handlers of the same class
    and the same options, in order. The remaining states are matched with handlers of the same class that
    monitor the same figure, if there are as many handlers as states; otherwise it is unclear which is which.
    """
    matched = _matched(saved, here, lambda options: sorted(options.items()), all_or_none=False)
    left = {name: options for name, options in saved.items() if name not in matched}
    free = {name: options for name, options in here.items() if name not in matched.values()}
    return {**matched, **_matched(left, free, lambda options: options.get("monitor"), all_or_none=True)}


def described(name: str, options: Options) -> str:
    """Return a handler's name for messages, with the figure that it monitors, if any."""
    return f"{name}(monitor={options['monitor']})" if "monitor" in options else name


def _matched(
    saved: Mapping[str, Options],
    here: Mapping[str, Options],
    key: Callable[[Options], Any],
    all_or_none: bool,
) -> dict[str, str]:
    groups: dict[str, tuple[list[str], list[str]]] = {}
    for side, handlers in enumerate((saved, here)):
        for name, options in handlers.items():
            of_class = name.partition("#")[0]  # the second is called Kind#2
            groups.setdefault(repr((of_class, key(options))), ([], []))[side].append(name)
    return {
        state: handler
        for states, like in groups.values()
        if len(states) == len(like) or not all_or_none
        for state, handler in zip(states, like)
    }


def _text(value: Any) -> str:
    if value is None or isinstance(value, (str, int, float)):
        return repr(value)
    if isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value):
        return repr(list(value))
    return getattr(value, "__name__", type(value).__name__)
