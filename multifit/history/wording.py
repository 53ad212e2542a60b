"""Figures as aligned text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ..tables import UNLIMITED, table

__all__ = ["STAGES", "all_epochs", "figure_text", "last_epoch"]

STAGES = ("train_", "val_")  # the prefixes of figures


def figure_text(value: float) -> str:
    """Return a figure as it is shown everywhere: four decimals where they tell something, ``-`` for NaN."""
    if math.isnan(value):
        return "-"
    return f"{value:.4f}" if value == 0 or 1e-3 <= abs(value) < 1e4 else f"{value:.3e}"


def all_epochs(figures: Mapping[str, Sequence[float]], epochs: int, width: int | None = None) -> str:
    """Return a table with a row per epoch, in blocks of at most `width` characters."""
    first = _column("epoch", [str(epoch + 1) for epoch in range(epochs)])
    blocks: list[list[list[str]]] = [[first]]
    for name, values in figures.items():
        column = _column(name, [figure_text(value) for value in values])
        used = sum(len(each[0]) + 2 for each in blocks[-1])
        if width is not None and len(blocks[-1]) > 1 and used + len(column[0]) > width:
            blocks.append([first])
        blocks[-1].append(column)
    rows = ([list(row) for row in zip(*block)] for block in blocks)
    return "\n\n".join(table(header, lines, UNLIMITED) for header, *lines in rows)


def last_epoch(last: Mapping[str, float]) -> str:
    """Return a table of one epoch, training beside validation."""
    names = dict.fromkeys(name.partition("_")[2] for name in last if name.startswith(STAGES))
    rows = [[name, *(_cell(last, stage + name) for stage in STAGES)] for name in names]
    rows += [[name, _cell(last, name), ""] for name in last if not name.startswith(STAGES)]
    return table(("figure", "train", "val"), rows)


def _cell(figures: Mapping[str, float], name: str) -> str:
    return figure_text(figures[name]) if name in figures else ""


def _column(title: str, cells: Sequence[str]) -> list[str]:
    width = max(map(len, [title, *cells]))
    return [cell.rjust(width) for cell in [title, *cells]]
