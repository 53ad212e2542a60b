"""Plain-text tables."""

from __future__ import annotations

from multifit.tables import table


def test_columns_are_aligned_and_numbers_stand_to_the_right() -> None:
    text = table([("loss", 1.5), ("accuracy", 10)], header=("figure", "value"))
    assert text == "figure    value\n--------  -----\nloss        1.5\naccuracy     10"


def test_short_rows_are_filled_up() -> None:
    assert table([("a", "b"), ("c",)], indent=2) == "  a  b\n  c"


def test_a_column_of_numbers_and_gaps_is_numeric() -> None:
    assert table([("a", 1), ("b", ""), ("c", 100)]) == "a    1\nb\nc  100"


def test_nothing() -> None:
    assert table([]) == ""
