"""Plain-text tables that fit the terminal, drawn by rich."""

from __future__ import annotations

import io
import re
import shutil
from typing import Iterable, Sequence

from rich.box import Box
from rich.console import Console
from rich.table import Table
from rich.text import Text

UNLIMITED = 100_000  # a width that no table reaches

_NUMBER = re.compile(r"[-+]?[\d,]*\.?\d+(e[-+]?\d+)?%?|-|[-+]?(nan|inf)", re.IGNORECASE)
# rich draws one character between columns. This one stands in for our gap of two spaces.
_DIVIDER = "\0"
_ROW, _RULE = f"  {_DIVIDER} ", f" -{_DIVIDER} "
_HANGING = "  "  # indents the lines of a wrapped cell after the first
_LEAST = 20  # characters that the last column must have, or all columns are wrapped
_BOX = Box("\n".join([_ROW, _ROW, _RULE, *[_ROW] * 5]), ascii=True)


def table(
    headers: Sequence[str],
    rows: Iterable[Sequence[object]],
    width: int | None = None,
    wrap_last: bool = False,
) -> str:
    """Return a table as plain text, two spaces between columns; empty without headers and rows.

    Cells are converted by `str`; missing ones at a row's end are left blank. Lines fit `width`, by default
    the terminal's, or 80 without a terminal: long cells are wrapped, or with `wrap_last` those of the last
    column alone (by :func:`wrap`), as long as the others leave it some room. Columns of numbers are aligned
    to the right and never wrapped: if they alone are wider than `width`, so is the table.
    """
    cells = [[str(cell) for cell in row] for row in rows]
    count = max((len(row) for row in [headers, *cells]), default=0)
    if not count:
        return ""
    if width is None:
        width = terminal_width()
    if wrap_last:
        cells = _wrap_last(headers, cells, width)
    columns = [[row[i] for row in cells if i < len(row)] for i in range(count)]
    drawing, least = Table(box=_BOX, show_edge=False, show_header=bool(headers), padding=0), 0
    for i, column in enumerate(columns):
        header = headers[i] if i < len(headers) else ""
        if _is_numeric(column):
            longest = max(len(cell) for cell in column)
            drawing.add_column(Text(header), justify="right", min_width=longest)
            least += longest
        else:
            drawing.add_column(Text(header), overflow="fold")
            least += 1
    for row in cells:
        drawing.add_row(*map(Text, row))
    gaps = count - 1
    text = _render(drawing, max(width - gaps, least))  # rich leaves out what has no room
    return "\n".join(line.replace(_DIVIDER, "  ").rstrip() for line in text.rstrip("\n").split("\n"))


def terminal_width() -> int:
    """Return the terminal's width in characters: 80 if the output goes elsewhere."""
    return shutil.get_terminal_size((80, 24)).columns


def wrap(text: str, width: int) -> str:
    """Break a text into lines at spaces and after opening brackets; the lines that follow are indented.

    Words that are longer than a line are broken after ``.``, ``/`` or ``_``, or anywhere. A line has at least
    three characters, however small `width` is.
    """
    lines, width = [""], max(width, len(_HANGING) + 1)
    for word in re.findall(r"[^\s(]*\(|[^\s(]+|\s+", text):
        for piece in _pieces(word.strip() or " ", width - len(_HANGING)):
            if len(lines[-1]) + len(piece) > width:
                lines.append(_HANGING)
            if piece != " " or lines[-1].strip():
                lines[-1] += piece
    return "\n".join(line.rstrip() for line in lines if line.strip())


def _pieces(word: str, width: int) -> list[str]:
    pieces = []
    while len(word) > width:
        end = max(word.rfind(letter, 0, width) for letter in "./_") + 1 or width
        pieces.append(word[:end])
        word = word[end:]
    return [*pieces, word]


def _wrap_last(headers: Sequence[str], rows: list[list[str]], width: int) -> list[list[str]]:
    """Return the rows with their last cells wrapped, if the other columns leave room for them."""
    last = max(map(len, rows), default=1) - 1
    lines = [[cell.split("\n") for cell in row] for row in [list(headers), *rows]]
    others = [max(len(line) for row in lines if i < len(row) for line in row[i]) for i in range(last)]
    room = width - sum(others) - 2 * last
    if room < _LEAST:
        return rows
    return [[*row[:last], wrap(row[last], room)] if len(row) > last else row for row in rows]


def _is_numeric(column: Sequence[str]) -> bool:
    filled = [cell.strip() for cell in column if cell.strip()]
    return bool(filled) and all(_NUMBER.fullmatch(cell) for cell in filled)


def _render(drawing: Table, width: int) -> str:
    # without a height, rich asks the environment for both; in a notebook, it would print HTML
    console = Console(
        file=io.StringIO(),
        width=max(1, width),
        height=25,
        color_system=None,
        force_jupyter=False,
        legacy_windows=False,
    )
    with console.capture() as capture:
        console.print(drawing, crop=False)
    return capture.get()
