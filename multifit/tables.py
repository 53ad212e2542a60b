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

__all__ = ["UNLIMITED", "table", "terminal_width"]

UNLIMITED = 100_000  # a width that no table reaches

_NUMBER = re.compile(r"[-+]?[\d,]*\.?\d+(e[-+]?\d+)?%?|-|[-+]?(nan|inf)", re.IGNORECASE)
# rich draws one character between columns. This one stands in for our gap of two spaces.
_DIVIDER = "\0"
_ROW, _RULE = f"  {_DIVIDER} ", f" -{_DIVIDER} "
_BOX = Box("\n".join([_ROW, _ROW, _RULE, *[_ROW] * 5]), ascii=True)


def table(headers: Sequence[str], rows: Iterable[Sequence[object]], width: int | None = None) -> str:
    """Return a table as plain text, two spaces between columns.

    Long cells are wrapped. Columns of numbers are aligned to the right and never wrapped: if they alone are
    wider than `width`, so is the table.

    Parameters
    ----------
    headers : sequence of str
        The column titles. Empty for a table without titles.
    rows : iterable of sequences
        The cells, converted by `str`. Missing cells at a row's end are left blank.
    width : int, optional
        The longest line, in characters. Defaults to the terminal's width, or 80 without a terminal.

    Returns
    -------
    str
        The lines, without a newline at the end. Empty if there are neither headers nor rows.

    Examples
    --------
    >>> print(table(("figure", "value"), [("loss", 1.5), ("accuracy", 10)]))
    figure    value
    --------  -----
    loss        1.5
    accuracy     10
    """
    cells = [[str(cell) for cell in row] for row in rows]
    count = max((len(row) for row in [headers, *cells]), default=0)
    if not count:
        return ""
    columns = [[row[i] for row in cells if i < len(row)] for i in range(count)]
    drawing = Table(box=_BOX, show_edge=False, show_header=bool(headers), padding=0)
    for i, column in enumerate(columns):
        header = headers[i] if i < len(headers) else ""
        if _is_numeric(column):
            longest = max(len(cell) for cell in column)
            drawing.add_column(Text(header), justify="right", min_width=longest)
        else:
            drawing.add_column(Text(header), overflow="fold")
    for row in cells:
        drawing.add_row(*map(Text, row))
    gaps = count - 1
    text = _render(drawing, (terminal_width() if width is None else width) - gaps)
    return "\n".join(line.replace(_DIVIDER, "  ").rstrip() for line in text.rstrip("\n").split("\n"))


def terminal_width() -> int:
    """Return the terminal's width in characters: 80 if the output goes elsewhere."""
    return shutil.get_terminal_size((80, 24)).columns


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
