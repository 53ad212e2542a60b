"""Plain-text tables."""

import pytest

from multifit.utils.tables import table, terminal_width


@pytest.mark.parametrize(
    ("headers", "rows", "expected"),
    [
        ((), [], ""),
        (("a", "b"), [], "a  b\n-  -"),
        ((), [("a", "b"), ("c",)], "a  b\nc"),
        (("figure", "value"), [("loss", 1.5)], "figure  value\n------  -----\nloss      1.5"),
        ((), [("a", 1), ("b", ""), ("c", 100)], "a    1\nb\nc  100"),
        ((), [("a", "0.5"), ("b", "-"), ("c", "1.2e-05")], "a      0.5\nb        -\nc  1.2e-05"),
        ((), [("a", " 5%"), ("b", "100%")], "a    5%\nb  100%"),
        ((), [("sum",), ("  part",)], "sum\n  part"),
        ((), [("[bold]x[/bold] :smile:",)], "[bold]x[/bold] :smile:"),
        ((), [("a\nb", "c")], "a  c\nb"),
    ],
)  # fmt: skip
def test_cells_are_aligned(headers: tuple[str, ...], rows: list[tuple[object, ...]], expected: str) -> None:
    assert table(headers, rows) == expected


ROWS = [("first", "many words " * 20, 1), ("second", "a_name_without_any_space" * 10, 12.5)]


@pytest.mark.parametrize("width", [30, 80, 133])
def test_lines_fit_and_nothing_is_lost(width: int) -> None:
    text = table(("name", "text", "number"), ROWS, width)
    assert max(map(len, text.splitlines())) <= width
    assert text.count("many") == text.count("words") == 20 and "12.5" in text
    letters = "".join(text.replace("second", "").replace("12.5", "").split())
    assert ROWS[1][1] in letters


def test_the_widest_columns_of_texts_are_wrapped_to_the_terminals_width(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert terminal_width() == 40 and max(map(len, table((), ROWS).splitlines())) <= 40
    lines = table((), [("name", "some words that need several lines", 1.5), ("short",)]).split("\n")
    assert lines == ["name   some words that need several  1.5", "         lines", "short"]
