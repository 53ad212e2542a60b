"""Arguments that are checked against their annotations, and numbers."""

import inspect
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest

import multifit
from multifit.utils import arguments as a
from multifit.utils.arguments import Count, Mode, PathLike, checked, checked_value

NAN, INFINITY, HUGE = float("nan"), float("inf"), 10**400
WHOLE, FINITE = "a whole number of at least 1", "a finite number"
Interval = Annotated[str, a.one_of("epoch")] | Count
Even = Annotated[int, a.Valid("an even number", lambda n: n % 2 == 0)]

# fmt: off
INVALID = [  # annotation, what is valid in words, values that are not
    (Count, WHOLE, [0, -1, 1.0, "1", None, True, NAN, b"1", np.array([1, 2])]),
    (int, "a whole number", [1.5, False, np.bool_(True)]),
    (float, FINITE, [NAN, INFINITY, -INFINITY, "1", None, True, [1], 1j, np.float32("nan")]),
    (a.NotNegative, "a finite number of at least 0", [-1, NAN]),
    (a.Share, "a finite number of at least 0 and below 1", [-0.1, 1]),
    (Annotated[float, a.bounds(above=0)], "a finite number above 0", [0]),
    (a.Seed, "a whole number of at least 0 and below 4294967296", [-1, 2**32]),
    (Count | None, f"{WHOLE} or None", [0, "None"]),
    (a.Share | None, "a finite number of at least 0 and below 1 or None", [1]),
    (bool, "True or False", [1, 0, None, "yes"]),
    (str, "a string", [3, b"x"]),
    (Callable[..., Any], "a function", [3, "time"]),
    (Callable[[], float], "a function without arguments", [3, "time", lambda a: a, lambda *, a: a]),
    (Callable[[Any], Any] | None, "a function of 1 argument or None", [lambda: 0, divmod]),
    (Mode, '"min" or "max"', ["", 3, None]),
    (Mode | None, '"min", "max" or None', [["min"]]),
    (Interval, f'"epoch" or {WHOLE}', ["batch", 0]),
    (a.Names, "a name or a list of names", [[], (), 3, [3], [["a"]], b"a"]),
    (a.Patterns, "a name or a list of names", [3, [None], np.arange(2)]),
    (Sequence[int], "a list", ["12", [1.5]]),
    (PathLike, "a path", [3, b"x", None, []]),
    (Path, "a Path", ["x"]),
    (Even, "an even number", [3, "2"]),
]
VALID = [  # annotation, the value, and what the function is called with
    (Count, np.int64(3), 3), (a.FromZero, 0, 0), (float, np.float32(0.5), 0.5), (float, 3, 3.0),
    (Count | None, None, None), (bool, True, True),
    (bool, np.bool_(False), False), (Mode, "min", "min"), (Interval, "epoch", "epoch"),
    (Interval, 2, 2), (a.Names, "a", "a"), (a.Names, ("a", "b"), ("a", "b")),
    (a.Patterns, iter("ab"), ["a", "b"]),
    (Iterable[str], {"a": 1}, ["a"]), (PathLike, Path("x"), Path("x")), (Any, 3j, 3j), (object, None, None),
    (Callable[..., Any], len, len), (Callable[[Any], int], len, len), (Callable[[], float], dict, dict),
    (Even, 2, 2),
]
# fmt: on


@pytest.mark.parametrize(("hint", "valid", "values"), INVALID)
def test_invalid_values_are_named_with_what_is_valid(hint: Any, valid: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(ValueError) as caught:
            checked_value("f: x", value, hint)
        shown = " ".join(repr(value).split())
        assert str(caught.value) == f"f: x is {shown}; valid is {valid}"


@pytest.mark.parametrize(("hint", "value", "expected"), VALID)
def test_valid_values_become_pythons(hint: Any, value: Any, expected: Any) -> None:
    converted = checked_value("x", value, hint)
    assert (converted, type(converted)) == (expected, type(expected))


def test_the_nearest_choice_is_suggested() -> None:
    with pytest.raises(ValueError, match=r"""^x is 'maxi' \(did you mean "max"\?\); valid is "min","""):
        checked_value("x", "maxi", Mode | None)


class Handler:
    @checked
    def __init__(self, name: str, folder: PathLike = "", n: Count | None = None, **others: Any) -> None:
        self.arguments = (name, folder, n, others)

    @checked
    def call(self, n: Count = 1) -> int:
        """Return n."""
        return n


def test_all_invalid_arguments_are_reported_at_once() -> None:
    with pytest.raises(ValueError) as caught:
        Handler("a", 3, n=-1)  # type: ignore[arg-type]
    path, number = str(caught.value).splitlines()
    assert path == "Handler: folder is 3; valid is a path"
    assert number == "Handler: n is -1; valid is a whole number of at least 1 or None"
    with pytest.raises(ValueError, match=r"^Handler\.call: n is 0; "):
        Handler("a").call(0)


def test_a_checked_function_is_called_with_the_converted_values() -> None:
    handler = Handler("a", os.curdir, np.int32(3), other=4)
    assert handler.arguments == ("a", os.curdir, 3, {"other": 4}) and type(handler.arguments[2]) is int
    assert handler.call() == 1 and Handler.call.__doc__ == "Return n."
    assert list(inspect.signature(Handler).parameters) == ["name", "folder", "n", "others"]


@pytest.mark.parametrize("arguments", [(), ("a", "b", 1, 2)])
def test_a_wrong_number_of_arguments_is_pythons_error(arguments: Any) -> None:
    with pytest.raises(TypeError, match=r"^Handler\.__init__\(\)|^__init__\(\)"):
        Handler(*arguments)


# fmt: off
UNKNOWN = [
    (lambda: Handler("a").call(m=1), 'Handler.call has no argument "m"; valid are "n"'),
    (lambda: multifit.TrainerSpec(".*", "adam", learning_rate=1, clip=2),
     'TrainerSpec has no argument "learning_rate", "clip" (did you mean "clip_norm"?); valid are "pa'),
    (lambda: multifit.MultiEstimator.fit(None, [], validation_data=[]),
     'MultiEstimator.fit has no argument "validation_data" (did you mean "val_data"?); valid '),
]
# fmt: on


@pytest.mark.parametrize(("call", "text"), UNKNOWN)
def test_an_unknown_argument_is_named_with_the_nearest_and_all_valid_ones(call: Any, text: str) -> None:
    with pytest.raises(TypeError) as caught:
        call()
    assert str(caught.value).startswith(text)


def test_nan_is_a_number_and_a_bool_is_not() -> None:
    assert all(map(a.is_number, (1, 0.5, NAN, np.float32(1)))) and not any(map(a.is_number, (True, "1")))
    assert all(map(a.is_finite_number, (1, 0.5))) and not any(map(a.is_finite_number, (NAN, HUGE, True)))
