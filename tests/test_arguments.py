"""Checks of arguments that must be numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from multifit.arguments import finite_number, is_finite_number, is_number, whole_number

NAN, INFINITY = float("nan"), float("inf")


def test_numpys_numbers_become_pythons() -> None:
    assert type(whole_number("n", np.int64(3))) is int
    assert type(finite_number("x", np.float32(0.5), least=0)) is float


@pytest.mark.parametrize("value", [0, -1, 1.0, "1", None, True, NAN])
def test_not_a_whole_number(value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^n is {value!r}; valid is a whole number of at least 1$"):
        whole_number("n", value)


@pytest.mark.parametrize("value", [NAN, INFINITY, -INFINITY, "1", None, True, [1]])
def test_not_a_finite_number(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^x is .*; valid is a finite number$"):
        finite_number("x", value)
    assert not is_finite_number(value)


@pytest.mark.parametrize(
    ("value", "bounds", "text"),
    [
        (-1, {"least": 0}, "x is -1; valid is a finite number of at least 0"),
        (0, {"above": 0}, "x is 0; valid is a finite number above 0"),
        (1.0, {"least": 0, "below": 1}, "x is 1.0; valid is a finite number of at least 0 and below 1"),
    ],
)
def test_a_number_out_of_bounds(value: float, bounds: dict[str, float], text: str) -> None:
    with pytest.raises(ValueError) as caught:
        finite_number("x", value, **bounds)
    assert str(caught.value) == text
    assert finite_number("x", 0.5, **bounds) == 0.5


def test_nan_is_a_number_and_a_bool_is_not() -> None:
    assert [is_number(value) for value in (1, 0.5, NAN, np.float32(1), True, "1")] == [True] * 4 + [False] * 2
