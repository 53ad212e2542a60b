"""Numbers and errors in messages, as people write them."""

import pytest

from multifit.utils.text import last_line, memory, nearest


def test_memory() -> None:
    assert [memory(size) for size in (0, 1500, 2e7, 3.25e9)] == ["0 bytes", "1.5 kB", "20 MB", "3.25 GB"]


def test_the_nearest_name() -> None:
    """Case and two letters in another order count least."""
    assert nearest("NaN", ["n", "nan"]) == "nan" and nearest("adma", ["adamax", "adam"]) == "adam"
    assert nearest("aab", ["aab", "aba"]) is None


class MXNetError(RuntimeError):
    """Named as MXNet's, whose messages these are."""


# fmt: off
LINES = [
    (KeyError("wrong"), "'wrong'"), (MXNetError(""), "no message"),
    (MXNetError("one\ntwo\n"), "two"),
    (ValueError("Traceback:\n  somewhere\nValueError: wrong \n"), "wrong"),
    (MXNetError('Traceback:\n  File "x.cc", line 6\nMXNetError: Check failed: a'), "Check failed: a"),
    (MXNetError("MXNetError: value 0 should be 1\nnum_hidden: Number, in operator f"), "value 0 should be 1"),
    (MXNetError("Deferred. MXNetError: value 0\nnum_hidden: Number."), "Deferred. MXNetError: value 0"),
]
# fmt: on


@pytest.mark.parametrize(("error", "line"), LINES, ids=[line for _, line in LINES])
def test_the_line_of_an_error_that_says_what_is_wrong(error: Exception, line: str) -> None:
    assert last_line(error) == line
