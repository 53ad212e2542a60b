"""How many arguments a callable takes."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from multifit.signatures import arity_problem, positional


def two(a: Any, b: Any) -> None: ...


def optional(a: Any, b: Any = None, *, key: Any = None) -> None: ...


def any_number(a: Any, *rest: Any) -> None: ...


class Callable:
    def __call__(self, a: Any) -> None: ...


FIT = [(two, 2), (optional, 1), (optional, 2), (any_number, 1), (any_number, 9), (Callable(), 1), (max, 7),
       (functools.partial(two, 1), 1), (lambda: None, 0)]  # fmt: skip


@pytest.mark.parametrize(("function", "count"), FIT)
def test_a_right_number_of_arguments(function: Any, count: int) -> None:
    assert arity_problem("f", function, ["x"] * count) is None


UNFIT = [
    (two, 1, 'f: is called with 1 argument ("x"), but takes 2: (a, b); name as many'),
    (two, 3, "but takes 2: (a, b)"),
    (optional, 3, "but takes 1 to 2: (a, b)"),
    (any_number, 0, "f: is called with 0 arguments (none), but takes at least 1: (a, ...)"),
    (Callable(), 2, "but takes 1: (a)"),
    (lambda: None, 1, "but takes 0: ()"),
    (lambda a, *, b, c=1: None, 1, '("x"), but needs "b" by keyword; give a default'),
]


@pytest.mark.parametrize(("function", "count", "text"), UNFIT)
def test_a_wrong_number_of_arguments(function: Any, count: int, text: str) -> None:
    assert text in str(arity_problem("f", function, ["x"] * count))


def test_parameters_that_are_passed_by_somebody_else() -> None:
    assert positional(two, skip=["a"]) == (["b"], 1, False)
    assert arity_problem("f", two, ["x"], skip=["a"]) is None


def test_another_fix() -> None:
    assert str(arity_problem("f", two, [], fix="give both")).endswith("; give both")


def test_a_callable_without_a_signature_is_not_checked() -> None:
    class Secret:
        __signature__ = "none"

        def __call__(self) -> None: ...

    assert positional(Secret()) is None
    assert arity_problem("f", Secret(), ["x"]) is None
