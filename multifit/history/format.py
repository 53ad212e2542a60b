"""Format figures as text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ..stages import STAGE_OF_PREFIX, split_figure
from ..tables import UNLIMITED, table, terminal_width

LAST_EPOCH_HEADERS = ("figure", *STAGE_OF_PREFIX)

_MOST_BLOCKS = 3  # more blocks of columns below each other than this are hard to read


def figure_text(value: float) -> str:
    """Return a figure with four decimals, in scientific notation if it is small or large; ``-`` for NaN."""
    if math.isnan(value):
        return "-"
    return f"{value:.4f}" if value == 0 or 1e-3 <= abs(value) < 1e4 else f"{value:.3e}"


def epoch_table(figures: Mapping[str, Sequence[float]], epochs: int, width: int | None = None) -> str:
    """Return a table that fits `width`, by default the terminal's width.

    It has one row per epoch, in up to three blocks of columns below each other. If that is not enough, it has
    one row per figure, with the first and the last value and the extremes.
    """
    width = terminal_width() if width is None else width
    first = _column("epoch", [str(epoch + 1) for epoch in range(epochs)])
    blocks: list[list[list[str]]] = [[first]]
    for name, values in figures.items():
        column = _column(name, [figure_text(value) for value in values])
        used = sum(len(cells[0]) + 2 for cells in blocks[-1])
        if len(blocks[-1]) > 1 and used + len(column[0]) > width:
            blocks.append([first])
        blocks[-1].append(column)
    if len(blocks) > _MOST_BLOCKS:
        return _range_table(figures, width)
    rows = ([list(row) for row in zip(*block)] for block in blocks)
    return "\n\n".join(table(header, lines, UNLIMITED) for header, *lines in rows)


def last_epoch_table(last: Mapping[str, float]) -> str:
    """Return a table of one epoch's figures, training beside validation."""
    return table(LAST_EPOCH_HEADERS, last_epoch_rows(last))


def last_epoch_rows(last: Mapping[str, float]) -> list[list[str]]:
    """Return the rows of a table of one epoch's figures: name, training and validation."""
    staged: dict[str, dict[str, str]] = {}
    others: list[list[str]] = []
    for figure, value in last.items():
        prefix, name = split_figure(figure)
        if prefix:
            staged.setdefault(name, {})[prefix] = figure_text(value)
        else:
            others.append([name, figure_text(value), ""])
    rows = [[name, *(cells.get(prefix, "") for prefix in STAGE_OF_PREFIX)] for name, cells in staged.items()]
    return [*rows, *others]


def _range_table(figures: Mapping[str, Sequence[float]], width: int) -> str:
    rows = [[name, *_range_cells(values)] for name, values in figures.items()]
    return table(("figure", "first", "lowest", "epoch", "highest", "epoch", "last"), rows, width)


def _range_cells(values: Sequence[float]) -> list[str]:
    """Return the first value, the lowest and the highest with their epochs, and the last value."""
    epochs = [epoch for epoch, value in enumerate(values) if not math.isnan(value)]
    if not epochs:
        return ["-", "-", "", "-", "", "-"]
    lowest, highest = min(epochs, key=values.__getitem__), max(epochs, key=values.__getitem__)
    extremes = [cell for epoch in (lowest, highest) for cell in (figure_text(values[epoch]), str(epoch + 1))]
    return [figure_text(values[epochs[0]]), *extremes, figure_text(values[epochs[-1]])]


def _column(title: str, cells: Sequence[str]) -> list[str]:
    width = max(map(len, [title, *cells]))
    return [cell.rjust(width) for cell in [title, *cells]]
