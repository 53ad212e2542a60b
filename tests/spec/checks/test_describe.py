"""Describing arrays and values in messages."""

import numpy as np
import pytest

from multifit.spec.checks import describe
from multifit.utils.text import counted, nearest, quoted, shown


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.ones((8, 1), "float32"), "(8, 1) float32"),
        (np.ones(3, "int64"), "(3,) int64"),
        (np.array(["a", "bc"]), "(2,) string"),
        (np.array([b"a"]), "(1,) string"),
        (np.array([{}], dtype=object), "(1,) object"),
        (None, "None"),
        (3, "int"),
        ("a", "str"),
    ],
)
def test_array(value: object, text: str) -> None:
    assert describe.array(value) == text


def test_a_dtype_that_is_a_class() -> None:
    class Array:
        """As MXNet's arrays: the dtype is numpy.float32 itself."""

        shape = [2, 3]
        dtype = np.float32

    assert describe.array(Array()) == "(2, 3) float32"


def test_arrays() -> None:
    assert describe.arrays([]) == "nothing"
    assert describe.arrays([None, 3]) == "None, int"
    assert describe.arrays([3] * 11).endswith("int, int, and 3 more")


def test_structure() -> None:
    one = np.ones((2,), "float32")
    assert describe.structure([one, (one, None)]) == "[(2,) float32, [(2,) float32, None]]"
    assert describe.structure({"a": [one]}) == '{"a": [(2,) float32]}'


def test_shown_is_one_line_of_bounded_length() -> None:
    assert shown("a") == "'a'"
    assert shown(np.arange(6).reshape(3, 2)) == "array([[0, 1], [2, 3], [4, 5]])"
    assert len(shown(list(range(1000)))) == 80


def test_counted() -> None:
    assert [counted(count, "array") for count in (0, 1, 2)] == ["0 arrays", "1 array", "2 arrays"]
    assert counted(2, "batch", "batches") == "2 batches"


def test_names() -> None:
    assert quoted(["a", 3]) == '"a", "3"'
    assert quoted([]) == "none"
    assert nearest("imge", ["image", 3]) == "image"
    assert nearest("image", ["image"]) is None
