"""Settings of a task file: its module-level values, and new values for them from text.

A setting that would bear the name of one of the file's functions is written with an underscore behind it, as
Python's own style guide has it: ``data_ = "digits"`` beside ``def data()`` is the setting ``data``. One that
can be only one of a few values says so with ``typing.Literal``: ``model: Literal["mlp", "lenet"] = "mlp"``.
"""

from __future__ import annotations

import ast
import types
from typing import Any, Literal, get_args, get_origin

__all__ = ["change_setting", "parse_setting", "restored", "settings_of"]

TYPES = (bool, int, float, str, tuple, list, type(None))
TRUTH = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}


def settings_of(module: types.ModuleType) -> dict[str, Any]:
    """Return a module's values that are numbers, strings, truth values, tuples, lists or None.

    Names in capitals are constants and no settings, and so are names that begin with an underscore.
    """
    public = {name: value for name, value in vars(module).items() if name[0] != "_" and not name.isupper()}
    return {name.rstrip("_"): value for name, value in public.items() if isinstance(value, TYPES)}


def change_setting(module: types.ModuleType, name: str, value: Any) -> None:
    """Give a setting of a module another value.

    Raises
    ------
    ValueError
        The setting is declared as a ``Literal`` of other values.
    """
    there = next(key for key in (name, f"{name}_") if isinstance(vars(module).get(key, module), TYPES))
    choices = _choices(module, there)
    if choices and value not in choices:
        raise ValueError(f"it must be one of {', '.join(map(str, choices))}")
    setattr(module, there, value)


def restored(value: Any, present: Any) -> Any:
    """Return a setting's value as it was before JSON made lists of its tuples; `present` is the value now."""
    if isinstance(present, tuple) and isinstance(value, list):
        return present if value == _as_json(present) else tuple(value)
    return value


def _as_json(value: Any) -> Any:
    return [_as_json(item) for item in value] if isinstance(value, (tuple, list)) else value


def _choices(module: types.ModuleType, name: str) -> tuple[Any, ...]:
    annotation = vars(module).get("__annotations__", {}).get(name)
    if isinstance(annotation, str):  # from __future__ import annotations
        try:
            annotation = eval(annotation, vars(module))
        except Exception:  # it says nothing that could be read now, as names for type checkers do
            return ()
    return get_args(annotation) if get_origin(annotation) is Literal else ()


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
