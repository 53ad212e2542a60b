"""Arguments of public functions, checked against their annotations before anything else happens.

``@checked`` reads a function's annotations at its first call. The annotations also hold bounds and choices::

    @checked
    def __init__(self, monitor: FigureName, mode: Mode | None = None, patience: FromZero = 0) -> None:

NumPy's numbers are valid numbers, and are passed on as Python's; ``True``, ``"1"`` and NaN are not. A
function must take as many arguments as annotated. ``Any``, ``object`` and protocols are not checked.
"""

import functools
import inspect
import math
import numbers
import os
import sys
import types
import typing
from collections import abc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import numpy as np

from .signatures import arity_problem
from .text import counted, quoted, shown, suggest

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Class = TypeVar("_Class", bound=type)


@dataclass(frozen=True)
class Valid:
    """What is valid besides the type, for ``Annotated``.

    `words` describe it, with ``{}`` for the type. Where there are `choices`, these describe it.
    """

    words: str
    accepts: Callable[[Any], bool] = lambda value: True
    choices: Sequence[str] = ()


def bounds(least: float = -math.inf, above: float = -math.inf, below: float = math.inf) -> Valid:
    """Return the bounds of a number; `least` is inclusive."""
    limits = (("of at least", least), ("above", above), ("below", below))
    words = " and ".join(f"{name} {limit:.10g}" for name, limit in limits if math.isfinite(limit))
    return Valid(f"{{}} {words}", lambda number: number >= least and above < number < below)


def one_of(*choices: str) -> Valid:
    """Return a choice of strings."""
    return Valid("", choices.__contains__, choices)


Count = Annotated[int, bounds(least=1)]
FromZero = Annotated[int, bounds(least=0)]
Seed = Annotated[int, bounds(least=0, below=2**32)]
Positive = Annotated[float, bounds(above=0)]
NotNegative = Annotated[float, bounds(least=0)]
Share = Annotated[float, bounds(least=0, below=1)]
OpenShare = Annotated[float, bounds(above=0, below=1)]
Mode = Annotated[str, one_of("min", "max")]
FigureName = Annotated[str, Valid('a name such as "val_loss"')]
_Name = Annotated[str, Valid("a name")]
Names = _Name | Annotated[Sequence[_Name], Valid("a list of names", lambda value: len(value) > 0)]
Patterns = _Name | Annotated[Iterable[_Name], Valid("a list of names")]
TextStream = Annotated[Any, Valid("a text stream", lambda value: hasattr(value, "write"))]
PathLike = Annotated[str | os.PathLike[str], Valid("a path")]


def checked(function: _Function, values: bool = True) -> _Function:
    """Let a function or constructor raise one ValueError for all arguments that are not as annotated.

    It raises TypeError, with all valid arguments, if one is unknown; without `values`, that is all it does.
    """
    owner = function.__qualname__.rpartition("<locals>.")[2].replace(".__init__", "")
    signature = inspect.signature(function)
    parameters = [each for each in signature.parameters.values() if each.name != "self"]
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters)
    names = [each.name for each in parameters if each.kind is not each.VAR_POSITIONAL]

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not takes_any:
            known_arguments(owner, kwargs, names)
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            return function(*args, **kwargs)  # one is missing, or given twice: Python's own message names it
        hints, problems = _hints(function) if values else {}, []
        for name, value in bound.arguments.items():
            try:
                bound.arguments[name] = checked_value(f"{owner}: {name}", value, hints.get(name, Any))
            except ValueError as error:
                problems.append(str(error))
        if problems:
            raise ValueError("\n".join(problems))
        return function(*bound.args, **bound.kwargs)

    return typing.cast(_Function, call)


def with_known_arguments(cls: _Class) -> _Class:
    """Let the constructor of a class raise TypeError, with all valid arguments, if one is unknown."""
    cls.__init__ = checked(cls.__init__, values=False)  # type: ignore[misc]
    return cls


def known_arguments(owner: str, passed: Iterable[str], valid: Sequence[str]) -> None:
    """Raise TypeError for arguments passed by names that are not in `valid`."""
    unknown = [name for name in passed if name not in valid]
    if unknown:
        named = ", ".join(f'"{name}"{suggest(name, valid)}' for name in unknown)
        raise TypeError(f"{owner} has no argument {named}; valid are {quoted(valid)}")


def checked_value(name: str, value: object, hint: Any) -> Any:
    """Return `value` converted as `hint` says, or raise ValueError with `name` in its message."""
    try:
        return _converted(value, hint)
    except (TypeError, ValueError):
        *most, last = _words(hint)
    near = suggest(value, _choices(hint)) if isinstance(value, str) else ""
    valid = f"{', '.join(most)} or {last}" if most else last
    raise ValueError(f"{name} is {shown(value)}{near}; valid is {valid}")


def all_positive(values: abc.Mapping[str, Any]) -> bool:
    """Return whether there are values, all of them finite numbers above 0."""
    return bool(values) and all(is_finite_number(each) and each > 0 for each in values.values())


def is_finite_number(value: object) -> bool:
    """Return whether `value` is a real number that is finite as a float; a bool is not a number."""
    try:
        return is_number(value) and math.isfinite(value)  # type: ignore[arg-type]
    except OverflowError:  # 10**400
        return False


def as_float(number: Any) -> float:
    """Return a finite number as a float; 0 for one smaller than any normal float, which MXNet cannot read."""
    return float(number) if abs(float(number)) >= sys.float_info.min else 0.0


def is_number(value: object) -> bool:
    """Return whether `value` is a real number; a bool is not."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _converted(value: Any, hint: Any) -> Any:
    """Return `value` as `hint` says; raise TypeError or ValueError if it is not valid."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        value = _converted(value, arguments[0])
        if not arguments[1].accepts(value):
            raise ValueError
        return value
    if origin in (typing.Union, types.UnionType):
        for argument in arguments:
            with suppress(TypeError, ValueError):
                return _converted(value, argument)
        raise TypeError
    if hint is Any or getattr(hint, "_is_protocol", False):
        return value
    if origin in (abc.Iterable, abc.Sequence) and not isinstance(value, (str, bytes)):
        items = [_converted(item, arguments[0]) for item in value]
        return value if isinstance(value, abc.Sequence) else items
    if hint is float and is_finite_number(value):
        return as_float(value)
    is_bool = isinstance(value, (bool, np.bool_))
    if (hint is bool and is_bool) or (hint is int and isinstance(value, numbers.Integral) and not is_bool):
        return hint(value)
    if hint in (float, bool, int) or origin in (abc.Iterable, abc.Sequence):
        raise TypeError
    if origin is abc.Callable and arguments[0] is not ... and callable(value):
        if arity_problem("", value, [""] * len(arguments[0])):
            raise TypeError
    elif not isinstance(value, origin or hint):
        raise TypeError
    return value


def _words(hint: Any) -> Iterator[str]:
    """Yield what is valid, in words."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        for argument in arguments:
            yield from _words(argument)
    elif origin is Annotated:
        base, valid = arguments
        if valid.choices:
            yield from (f'"{choice}"' for choice in valid.choices)
        else:
            yield valid.words.format(next(_words(base)))
    elif origin is abc.Callable and arguments[0] is not ...:
        count = len(arguments[0])
        yield f"a function of {counted(count, 'argument')}" if count else "a function without arguments"
    else:
        yield _WORDS.get(origin or hint) or f"a {(origin or hint).__name__}"


def _choices(hint: Any) -> Iterator[str]:
    for argument in typing.get_args(hint):
        yield from argument.choices if isinstance(argument, Valid) else _choices(argument)


_hints = functools.cache(functools.partial(typing.get_type_hints, include_extras=True))
_WORDS = {
    Any: "anything",
    int: "a whole number",
    float: "a finite number",
    bool: "True or False",
    str: "a string",
    type(None): "None",
    abc.Callable: "a function",
    abc.Iterable: "a list",
    abc.Sequence: "a list",
}
