"""Read MXNet's attributes, which are strings, with the types of a function's keyword arguments.

The keyword arguments of an operator's function are the table of its attributes: they have MXNet's names,
defaults and types. A `Literal` lists the values that are translated; other values are refused.
"""

import ast
import inspect
import threading
from collections.abc import Callable, Mapping
from functools import cache
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import torch

from ...utils.text import shown, suggest

Tensor = torch.Tensor
Ints = tuple[int, ...]
Bounds = tuple[int | None, ...]  # of slices; None means the end of the axis
Layout = Literal[None, "NCW", "NCHW", "NCDHW"]
UNIONS = (Union, UnionType)  # `Optional[int]`, and `int | None`

_PARSER = threading.Lock()  # Python 3.11's parser raises SystemErrors if threads use it at the same time
_NAMES = ["float16", "bfloat16", "float32", "float64", "uint8", "int8", "int32", "int64", "bool"]
DTYPES = {name: getattr(torch, name) for name in _NAMES}
# They say how and where MXNet computes, not what; or give the number of inputs, which is known anyway.
IGNORED = {"workspace", "cudnn_tune", "cudnn_off", "ctx", "num_args", "key", "ndev"}
# The translation passes these to functions that take them: the mode, a tensor on the graph's device, and
# MXNet's name of the operator.
GIVEN = {"training", "like", "operator"}


class AttributeProblem(ValueError):
    """A value of an attribute that is not translated."""


@cache
def table(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the types of a function's attributes by name, including those in `GIVEN`.

    Functions of torch itself have no attributes.
    """
    if (function.__module__ or "").split(".")[0] != __name__.split(".")[0]:
        return {}
    hints = get_type_hints(function)
    keywords = inspect.signature(function).parameters.values()
    return {each.name: hints[each.name] for each in keywords if each.kind is each.KEYWORD_ONLY}


@cache
def returns_tuple(function: Callable[..., Any]) -> bool:
    """Whether a function returns a tuple of tensors, rather than a tensor."""
    return get_origin(get_type_hints(function).get("return")) is tuple


def read_attributes(function: Callable[..., Any], attributes: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of attributes for a function; a function without attributes ignores all, as in MXNet.

    Raises
    ------
    AttributeProblem
        The function has no such attribute, or does not translate its value.
    """
    known = {name: kind for name, kind in table(function).items() if name not in GIVEN}
    if not known:
        return {}
    values = {}
    for name, text in attributes.items():
        if name in IGNORED:
            continue
        if name not in known:
            raise AttributeProblem(f"its attribute {name}={text} is not translated{suggest(name, known)}")
        try:
            values[name] = _read(known[name], text)
        except (ValueError, KeyError, TypeError):
            raise AttributeProblem(f"{name}={text} is not translated; valid: {_valid(known[name])}") from None
    keywords = inspect.signature(function).parameters
    for name in sorted(
        n for n in known if keywords[n].default is inspect.Parameter.empty and n not in values
    ):
        raise AttributeProblem(f"its default of {name} is not translated; valid: {_valid(known[name])}")
    return values


def _literal(text: str) -> Any:
    try:
        with _PARSER:
            return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _read(kind: Any, text: str) -> Any:
    """Read a value of a type; raises ValueError, KeyError or TypeError if the text is not such a value."""
    if get_origin(kind) is Literal:
        value = _literal(text)
        if value not in get_args(kind):
            raise ValueError(value)
        return value
    if get_origin(kind) in UNIONS:
        return None if text == "None" else _read(get_args(kind)[0], text)
    if kind is torch.dtype:
        return DTYPES[text]
    if get_origin(kind) is tuple:
        value = _literal(text)
        items = value if isinstance(value, (tuple, list)) else [value]
        return tuple(_read(get_args(kind)[0], str(each)) for each in items)
    if kind is bool:
        return {"True": True, "False": False, "1": True, "0": False}[text]
    return kind(text)


def _valid(kind: Any) -> str:
    kind = get_args(kind)[0] if get_origin(kind) in UNIONS else kind
    if get_origin(kind) is Literal:
        return ", ".join(shown(each) for each in get_args(kind))
    return ", ".join(DTYPES) if kind is torch.dtype else "values of its type"
