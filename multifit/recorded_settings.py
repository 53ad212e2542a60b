"""Settings in the record of a run, which is JSON: any value that a command line can set comes back equal."""

from __future__ import annotations

import json
from contextlib import suppress
from itertools import chain, repeat
from typing import Any

from .settings import parse_literal

PYTHON = "python"  # the key of a value that is recorded as text
_PLAIN = (bool, int, float, str, type(None))
_KINDS: dict[Any, str] = {  # of values that can replace each other
    bool: "true or false",
    (int, float): "a number",
    str: "a text",
    (tuple, list): "a list",
}


def recorded(value: Any) -> Any:
    """Return a setting's value for JSON; tuples and nested values are written as Python text."""
    items = value if isinstance(value, list) else [value]
    if not all(isinstance(item, _PLAIN) for item in items):
        with suppress(ValueError):
            if parse_literal(repr(value)) == value:
                return {PYTHON: repr(value)}
    return value


def restored(value: Any, present: object) -> Any:
    """Return a setting's value from what :func:`recorded` returned.

    Older versions recorded every value as JSON, which turned tuples into lists. A list becomes a tuple again
    where `present` has a tuple; items beyond the last one of `present` are treated like that one. Raises
    ValueError for a value of another type than that of `present`; None fits any type.
    """
    if isinstance(present, (tuple, list)) and isinstance(value, list):
        return _like(value, present)
    if isinstance(value, dict) and value.keys() == {PYTHON}:
        value = parse_literal(value[PYTHON])
        if isinstance(present, (tuple, list)) and isinstance(value, (tuple, list)):
            value = tuple(value) if isinstance(present, tuple) else list(value)
    if value is None or present is None or _kind(value) == _kind(present):
        return value
    raise ValueError(f"it must be {_kind(present)}")


def _kind(value: object) -> str:
    return next((words for kind, words in _KINDS.items() if isinstance(value, kind)), type(value).__name__)


def _like(value: Any, present: Any) -> Any:
    if json.dumps(value) == json.dumps(_as_json(present), default=repr):  # 1, 1.0 and True are equal
        return present
    if isinstance(value, list) and isinstance(present, (tuple, list)):
        models = chain(present, repeat(present[-1] if present else None))
        items = [_like(item, model) for item, model in zip(value, models)]
        return tuple(items) if isinstance(present, tuple) else items
    if isinstance(value, dict) and isinstance(present, dict):
        return {name: _like(item, present.get(name)) for name, item in value.items()}
    return value


def _as_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _as_json(item) for name, item in value.items()}
    return [_as_json(item) for item in value] if isinstance(value, (tuple, list)) else value
