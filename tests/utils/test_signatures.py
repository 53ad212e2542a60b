"""How many arguments a callable takes."""

import functools
from typing import Any

import pytest

from multifit.utils.signatures import arity_problem


def two(a: Any, b: Any) -> None: ...


def optional(a: Any, b: Any = None, *, key: Any = None) -> None: ...


def any_number(a: Any, *rest: Any) -> None: ...


class Callable:
    def __call__(self, a: Any) -> None: ...


FIT = [(two, 2), (optional, 1), (optional, 2), (any_number, 9), (Callable(), 1), (max, 7),
       (functools.partial(two, 1), 1), (lambda: None, 0)]  # fmt: skip
UNFIT = [
    (two, 1, "f: is called with 1 argument (\"x\"), but takes (a, b): missing a required argument: 'b'; "),
    (optional, 3, "but takes (a, b=None, *, key=None): too many positional arguments"),
    (any_number, 0, "f: is called with 0 arguments (none), but takes (a, *rest): missing"),
    (Callable(), 2, "but takes (a): too many positional arguments"),
    (lambda a, *, b, c=1: None, 1, "but takes (a, *, b, c=1): missing a required"),
]


@pytest.mark.parametrize(("function", "count", "text"), [*((*each, None) for each in FIT), *UNFIT])
def test_the_number_of_arguments(function: Any, count: int, text: str | None) -> None:
    problem = arity_problem("f", function, ["x"] * count)
    assert problem is None if text is None else text in str(problem)


def test_parameters_that_are_passed_by_somebody_else() -> None:
    assert arity_problem("f", two, ["x"], skip=["a"]) is None
    assert str(arity_problem("f", two, [], skip=["a"], fix="give it")).endswith("'b'; give it")
