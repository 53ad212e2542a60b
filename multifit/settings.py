"""Settings of a task file: its module-level values, and new values for them from text."""

from __future__ import annotations

import ast
import types
from typing import Any

__all__ = ["parse_setting", "settings_of"]

TYPES = (bool, int, float, str, tuple, list, type(None))
TRUTH = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}


def settings_of(module: types.ModuleType) -> dict[str, Any]:
    """Return the public values of a module that are numbers, strings, truth values, tuples, lists or None."""
    public = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    return {name: value for name, value in public.items() if isinstance(value, TYPES)}


def parse_setting(text: str, present: Any) -> Any:
    """Read `text` as a value of the type that `present` has.

    Parameters
    ----------
    text : str
        The new value. Lists and tuples are written as in Python, ``[1, 2]``, the brackets may be left out;
        truth values as true, yes, on, 1 or false, no, off, 0.
    present : object
        The value now. Where it is None anything goes: what reads as a Python value is one, the rest is text.

    Returns
    -------
    object
        The value, of the type of `present`.

    Raises
    ------
    ValueError
        The text is not of that type; the message says what is.
    """
    if isinstance(present, str):
        return text
    if isinstance(present, bool):
        if text.lower() not in TRUTH:
            raise ValueError(f"it must be one of {', '.join(TRUTH)}")
        return TRUTH[text.lower()]
    if isinstance(present, (int, float)):
        return _number(text, type(present))
    if isinstance(present, (tuple, list)):
        return _sequence(text, type(present))
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


def _number(text: str, kind: type) -> Any:
    try:
        return kind(text)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise ValueError(f"it must be {what}") from None


def _sequence(text: str, kind: type) -> Any:
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        raise ValueError("it must be a list as in Python, such as [1, 2]") from None
    return kind(value if isinstance(value, (tuple, list)) else [value])
