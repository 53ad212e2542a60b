"""Arguments of public functions, checked against their annotations before anything else happens.

``@checked`` reads a function's annotations at its first call. The annotations also hold bounds and choices::

    @checked
    def __init__(self, monitor: FigureName, mode: Mode | None = None, patience: FromZero = 0) -> None:

NumPy's numbers are valid numbers, and are passed on as Python's; ``True``, ``"1"`` and NaN are not. A
function must take as many arguments as annotated. ``Any``, ``object`` and protocols are not checked.
"""

from __future__ import annotations

import errno
import functools
import inspect
import math
import numbers
import os
import sys
import types
import typing
from collections import abc
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Callable, Iterable, Iterator, Sequence, TypeVar, Union

import numpy as np

from .errors import counted, quoted, shown, suggest
from .signatures import arity_problem

_LIMIT = 2**63  # of whole numbers, as in NumPy
_LONGEST = 200  # characters of a name
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
FigureName = Annotated[str, Valid('a name such as "val_loss"', lambda name: _can_be_shown(name))]
_Name = Annotated[str, Valid("a name", lambda name: _can_be_shown(name))]
Names = Union[_Name, Annotated[Sequence[_Name], Valid("a list of names", lambda value: len(value) > 0)]]
Patterns = Union[_Name, Annotated[Iterable[_Name], Valid("a list of names")]]
TextStream = Annotated[Any, Valid("a text stream", lambda value: hasattr(value, "write"))]
PathLike = Annotated[Union[str, os.PathLike[str]], Valid("a path", lambda path: _can_be_opened(path))]


def checked(function: _Function) -> _Function:
    """Let a function or constructor raise one ValueError for all arguments that are not as annotated."""
    owner = function.__qualname__.rpartition("<locals>.")[2].replace(".__init__", "")
    signature = inspect.signature(function)
    names = _keywords(signature)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            known_arguments(owner, kwargs, names)
            return function(*args, **kwargs)  # one is missing, or given twice: Python's own message names it
        hints, problems = _hints(function), []
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
    constructor: Callable[..., None] = cls.__init__  # type: ignore[misc]
    names = _keywords(inspect.signature(constructor))

    @functools.wraps(constructor)
    def call(*args: Any, **kwargs: Any) -> None:
        known_arguments(cls.__name__, kwargs, names)
        constructor(*args, **kwargs)

    cls.__init__ = call  # type: ignore[misc]
    return cls


def known_arguments(owner: str, passed: Iterable[str], valid: Sequence[str] | None) -> None:
    """Raise TypeError for arguments passed by names that are not in `valid`; None allows any name."""
    unknown = [] if valid is None else [name for name in passed if name not in valid]
    if unknown:
        named = ", ".join(f'"{name}"{suggest(name, valid or ())}' for name in unknown)
        raise TypeError(f"{owner} has no argument {named}; valid are {quoted(valid or ())}")


def _keywords(signature: inspect.Signature) -> list[str] | None:
    """Return the names by which arguments can be passed, without ``self``; None if any name can."""
    parameters = list(signature.parameters.values())
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return None
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [each.name for each in parameters if each.kind in by_name and each.name != "self"]


def checked_value(name: str, value: object, hint: Any) -> Any:
    """Return `value` converted as `hint` says, or raise ValueError with `name` in its message."""
    try:
        return _converted(value, hint)
    except (TypeError, ValueError):
        *most, last = _words(hint)
    near = suggest(value, _choices(hint)) if isinstance(value, str) else ""
    valid = f"{', '.join(most)} or {last}" if most else last
    limit = ", below 2**63" if isinstance(value, int) and value >= _LIMIT else ""
    raise ValueError(f"{name} is {shown(value)}{near}; valid is {valid}{limit}")


def is_finite_number(value: object) -> bool:
    """Return whether `value` is a real number that is finite as a float; a bool is not a number."""
    try:
        return is_number(value) and math.isfinite(float(value))  # type: ignore[arg-type]
    except (OverflowError, TypeError, ValueError):  # 10**400, or something that only looks like a number
        return False


def as_float(number: Any) -> float:
    """Return a finite number as a float; 0 for one smaller than any normal float, which MXNet cannot read."""
    return float(number) if abs(float(number)) >= sys.float_info.min else 0.0


def is_number(value: object) -> bool:
    """Return whether `value` is a real number; a bool is not."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _can_be_shown(name: str) -> bool:
    """Return whether a name can stand in messages and tables, as in a TaskSpec."""
    return len(name) <= _LONGEST and name.isprintable()


def _can_be_opened(path: Union[str, os.PathLike[str]]) -> bool:
    """Return whether MXNet, which takes UTF-8, and the system can open a path, or make it."""
    try:
        os.fspath(path).encode("utf-8")
        os.lstat(path)
    except ValueError:  # it is not UTF-8, or has a zero byte
        return False
    except OSError as error:
        return error.errno != errno.ENAMETOOLONG
    return True


def _converted(value: Any, hint: Any) -> Any:
    """Return `value` as `hint` says; raise TypeError or ValueError if it is not valid."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        value = _converted(value, arguments[0])
        if not arguments[1].accepts(value):
            raise ValueError
    elif origin in (Union, types.UnionType):
        for argument in arguments:
            with suppress(TypeError, ValueError):
                return _converted(value, argument)
        raise TypeError
    elif origin in (abc.Iterable, abc.Sequence):
        if isinstance(value, (str, bytes)):
            raise TypeError
        items = [_converted(item, arguments[0]) for item in value]
        return value if isinstance(value, abc.Sequence) else items
    elif hint is bool:
        if not isinstance(value, (bool, np.bool_)):
            raise TypeError
        return bool(value)
    elif hint is int:
        if not isinstance(value, numbers.Integral) or isinstance(value, bool) or abs(int(value)) >= _LIMIT:
            raise ValueError
        return int(value)
    elif hint is float:
        if not is_finite_number(value):
            raise ValueError
        return as_float(value)
    elif origin is abc.Callable:
        if not callable(value) or _wrong_arity(value, arguments):
            raise TypeError
    elif hint is Any or getattr(hint, "_is_protocol", False):
        return value
    elif not isinstance(value, origin or hint):
        raise TypeError
    return value


def _wrong_arity(function: Callable[..., Any], arguments: Sequence[Any]) -> bool:
    """Return whether a function cannot be called as ``Callable[[...], Any]`` says."""
    parameters = arguments[0]
    return parameters is not ... and bool(arity_problem("", function, [""] * len(parameters)))


def _words(hint: Any) -> Iterator[str]:
    """Yield what is valid, in words."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
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


_hints = functools.lru_cache(maxsize=None)(functools.partial(typing.get_type_hints, include_extras=True))
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
