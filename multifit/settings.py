"""Settings of a task file: its module-level values, and new values for them from text.

A setting with the same name as one of the file's functions is written with a trailing underscore, as PEP 8
recommends: ``data_ = "digits"`` beside ``def data()`` is the setting ``data``. If the file also has a setting
``data``, the name stays ``data_``. ``typing.Literal`` restricts a setting to a few values:
``model: Literal["mlp", "lenet"] = "mlp"``.
"""

from __future__ import annotations

import ast
import types
from contextlib import suppress
from typing import Any, Callable, Literal, get_args, get_origin

_TYPES = (bool, int, float, str, tuple, list, type(None))
_BOOLEANS = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}


def settings_of(module: types.ModuleType) -> dict[str, Any]:
    """Return the settings of a module: its numbers, strings, booleans, tuples, lists and Nones, by name.

    Names in capitals are constants, not settings. Names with a leading underscore are private.
    """
    return {name: getattr(module, attribute) for name, attribute in attributes_of(module).items()}


def change_setting(
    module: types.ModuleType, name: str, value: Any, read: Callable[[Any, Any], Any], written: Any
) -> None:
    """Change the value of a module's setting to what `read` makes of `value`.

    `read` also gets a value of the type that is needed: the one `written` in the file, or, where the setting
    is declared as a ``Literal``, one of its choices. A whole number of a setting that is declared as a
    ``float`` is one. Raises ValueError if `read` raises it, or if the value is not one of the choices.
    """
    attribute = attributes_of(module)[name]
    annotation = _annotation(module, attribute)
    choices = get_args(annotation) if get_origin(annotation) is Literal else ()
    if not choices:
        if type(written) is int and float in (annotation, *get_args(annotation)):  # such as Optional[float]
            written = float(written)
        setattr(module, attribute, read(value, written))
        return
    for choice in choices:
        with suppress(ValueError):
            if read(value, choice) == choice:
                setattr(module, attribute, choice)
                return
    raise ValueError(f"it must be one of {', '.join(map(str, choices))}")


def attributes_of(module: types.ModuleType) -> dict[str, str]:
    """Return the names of a module's settings, each with the name of its value in the module."""
    plain = [name for name, value in vars(module).items() if isinstance(value, _TYPES)]
    public = [name for name in plain if name[0] != "_" and not name.isupper()]
    bare = {name: name.removesuffix("_") for name in public}
    return {name if bare[name] in plain else bare[name]: name for name in public}


def parse_setting(text: str, present: object) -> Any:
    """Parse `text` as a value of the type of `present`; if that fails, raise ValueError with what is valid.

    Lists and tuples are written as in Python, ``[1, 2]``, or without brackets; booleans as true, yes, on, 1
    or false, no, off, 0. If `present` is None, `text` is read as a Python literal, or else as a string.
    """
    if isinstance(present, str):
        return text
    if isinstance(present, bool):
        if text.lower() not in _BOOLEANS:
            raise ValueError(f"it must be one of {', '.join(_BOOLEANS)}")
        return _BOOLEANS[text.lower()]
    if isinstance(present, (int, float)):
        return _number(text, type(present))
    if isinstance(present, (tuple, list)):
        return _sequence(text, type(present))
    try:
        return parse_literal(text)
    except ValueError:
        return text


def parse_literal(text: str) -> Any:
    """Parse a literal of Python; raises ValueError if `text` is not one."""
    try:
        return ast.literal_eval(text)
    except (MemoryError, RecursionError, SyntaxError, TypeError) as error:
        raise ValueError(f"it must be a Python literal: {error}") from None


def _annotation(module: types.ModuleType, name: str) -> Any:
    """Return how a setting is declared; None if it is not, or if that cannot be told."""
    annotation = vars(module).get("__annotations__", {}).get(name)
    if isinstance(annotation, str):  # from __future__ import annotations
        try:
            annotation = eval(annotation, vars(module))
        except Exception:  # it uses names that exist for type checkers only
            return None
    return annotation


def _number(text: str, kind: type[int | float]) -> float:
    try:
        return kind(text)
    except ValueError:
        expected = "a whole number" if kind is int else "a number"
        raise ValueError(f"it must be {expected}") from None


def _sequence(text: str, kind: type[tuple[Any, ...]] | type[list[Any]]) -> tuple[Any, ...] | list[Any]:
    try:
        value = parse_literal(text)
    except ValueError:
        raise ValueError("it must be a Python list, such as [1, 2]") from None
    return kind(value if isinstance(value, (tuple, list)) else [value])
