"""Plain-text tables that fit the terminal."""

import re
import shutil
from collections.abc import Iterable, Sequence
from html import escape
from itertools import zip_longest
from textwrap import fill

from tabulate import tabulate

UNLIMITED = 100_000  # a width that no table reaches

_NUMBER = re.compile(r"[-+]?[\d,]*\.?\d+(e[-+]?\d+)?%?|-|[-+]?(nan|inf)", re.IGNORECASE)
_LEAST = 12  # characters to which columns of texts are wrapped at most


def table(headers: Sequence[str], rows: Iterable[Sequence[object]], width: int | None = None) -> str:
    """Return a table as plain text, two spaces between columns; empty without headers and rows.

    Cells are converted by `str`; missing ones at a row's end are left blank. Columns of numbers are aligned
    to the right. If a line is longer than `width`, by default the terminal's or 80 without a terminal, the
    widest columns of texts are wrapped.
    """
    cells = [[str(cell) for cell in row] for row in rows]
    columns = [list(column) for column in zip_longest(*cells, headers, fillvalue="")]
    if not columns:
        return ""
    numeric = [_is_numeric(column[:-1]) for column in columns]
    widths = [max(len(line) for cell in column for line in cell.split("\n")) for column in columns]
    room = (terminal_width() if width is None else width) - 2 * (len(columns) - 1)
    most = max(widths)
    while most > _LEAST and sum(w if n else min(w, most) for w, n in zip(widths, numeric)) > room:
        most -= 1
    wrapped = [[c if n else _wrap(c, most) for c, n in zip(row, numeric)] for row in cells]
    ruled = [headers, ["-" * (w if n else min(w, most)) for w, n in zip(widths, numeric)]] if headers else []
    text = tabulate(
        [*ruled, *wrapped],
        tablefmt="plain",
        disable_numparse=True,
        preserve_whitespace=True,
        colalign=["right" if n else "left" for n in numeric],
    )
    return "\n".join(line.rstrip() for line in text.split("\n"))


def html_table(title: str, headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table under a title as HTML, for notebooks; titles and cells are escaped."""
    cells = tabulate(rows, headers, tablefmt="html", disable_numparse=True)
    return f"<h4>{escape(title)}</h4>\n{cells}"


def terminal_width() -> int:
    """Return the terminal's width in characters: 80 if the output goes elsewhere."""
    return shutil.get_terminal_size((80, 24)).columns


def _wrap(cell: str, width: int) -> str:
    """Break long lines at spaces and after the opening bracket of a call; further lines are indented."""
    lines = []
    for line in cell.split("\n"):
        if len(line) > width:
            spaced = re.sub(r"(?<=\w)\(", "( ", line)
            line = fill(spaced, width, subsequent_indent="  ").replace("( ", "(")
        lines.append(line)
    return "\n".join(lines)


def _is_numeric(column: Sequence[str]) -> bool:
    filled = [cell.strip() for cell in column if cell.strip()]
    return bool(filled) and all(map(_NUMBER.fullmatch, filled))
