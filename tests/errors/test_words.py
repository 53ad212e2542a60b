"""Numbers and errors in messages, as people write them."""

import pytest

from multifit.errors import last_line, memory, nearest


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 bytes"), (12, "12 bytes"), (1500, "1.5 kB"), (20_000_000, "20 MB"), (3.25e9, "3.25 GB")],
)
def test_memory(size: float, text: str) -> None:
    assert memory(size) == text


def test_a_name_that_differs_in_case_alone_is_the_nearest() -> None:
    assert nearest("NaN", ["n", "nan"]) == "nan" and nearest("SGD", ["sgld", "sgd"]) == "sgd"


class MXNetError(RuntimeError):
    """Named as MXNet's, whose messages these are."""


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (KeyError("wrong"), "'wrong'"),
        (ValueError("Traceback:\n  somewhere\nValueError: wrong \n"), "wrong"),
        ("", "no message"),
        ("one\ntwo\n", "two"),
        ('Traceback:\n  File "x.cc", line 6\nMXNetError: Check failed: a == b', "Check failed: a == b"),
        (
            "MXNetError: value 0 should be 1\nnum_hidden: Number of nodes, in operator f",
            "value 0 should be 1",
        ),
        ("Deferred. MXNetError: value 0\nnum_hidden: Number.", "Deferred. MXNetError: value 0"),
    ],
)
def test_the_line_of_an_error_that_says_what_is_wrong(error: Exception | str, line: str) -> None:
    assert last_line(MXNetError(error) if isinstance(error, str) else error) == line
