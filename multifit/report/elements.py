"""The page's tables and images: what its templates show."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable

from ..history import LAST_EPOCH_HEADERS, History, figure_text, last_epoch_rows
from ..plots import to_svg

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = 12  # figures per table


@dataclass(frozen=True)
class Grid:
    """A table. The first cell of each row is the row's title."""

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Image:
    """An image of the page."""

    name: str  # the caption, or the text for readers who cannot see the image
    source: str  # a data URL


def results_grid(history: History, directions: Mapping[str, str]) -> Grid:
    """Return the figures of the last epoch, training beside validation, and the best with their epochs."""
    rows = [[*row, *_best_cells(row[0], history, directions)] for row in last_epoch_rows(history.last)]
    return Grid([*LAST_EPOCH_HEADERS, "best", "in epoch"], rows)


def best_epoch(history: History, directions: Mapping[str, str]) -> str:
    """Return which epoch is the best, by the validation's loss or its first figure of known direction."""
    figures = ["val_loss", *(name for name in history if name.startswith("val_")), "train_loss"]
    for figure in figures:
        found = _best(figure, history, directions)
        if found is not None:
            epoch, value = found
            return f"The best epoch is {epoch} of {history.epochs}, by {figure}: {figure_text(value)}."
    return ""


def epoch_grids(history: History) -> list[Grid]:
    """Return the figures of all epochs, in tables of at most `COLUMNS` figures."""
    names = list(history)
    blocks = [names[start : start + COLUMNS] for start in range(0, len(names), COLUMNS)]
    return [_epoch_grid(history, block) for block in blocks]


def comparison_grid(title: str, columns: Mapping[str, Mapping[str, str]]) -> Grid:
    """Return a table with a column per run, and a row for each name that any of them has."""
    names = dict.fromkeys(name for column in columns.values() for name in column)
    rows = [[name, *(column.get(name, "") for column in columns.values())] for name in names]
    return Grid([title, *columns], rows)


def setting_texts(settings: Mapping[str, object]) -> dict[str, str]:
    """Return settings from JSON as texts, written as on a command line."""
    return {name: _setting_text(value) for name, value in settings.items()}


def png_image(name: str, data: bytes) -> Image:
    """Return a PNG file as an image."""
    return Image(name, _data_url("image/png", data))


def curves_image(draw: Callable[[], Figure]) -> Image | None:
    """Return the figure that `draw` returns as an SVG image, or None without matplotlib."""
    try:
        figure = draw()
    except ImportError:
        return None
    return Image("the figures over the epochs", _data_url("image/svg+xml", to_svg(figure)))


def _best_cells(name: str, history: History, directions: Mapping[str, str]) -> list[str]:
    for figure in (f"val_{name}", f"train_{name}"):
        found = _best(figure, history, directions)
        if found is not None:
            return [figure_text(found[1]), str(found[0])]
    return ["", ""]


def _best(figure: str, history: History, directions: Mapping[str, str]) -> tuple[int, float] | None:
    """Return the epoch in which a figure was best first, and its value; None if that is unknown."""
    sign = {"min": 1, "max": -1}.get(directions.get(figure, ""), 0)
    values = enumerate(history.get(figure, []), 1)
    measured = [(sign * value, epoch, value) for epoch, value in values if math.isfinite(value)]
    return min(measured)[1:] if sign and measured else None


def _epoch_grid(history: History, names: Sequence[str]) -> Grid:
    columns = [[figure_text(value) for value in history[name]] for name in names]
    rows = [[str(epoch), *cells] for epoch, cells in enumerate(zip(*columns), 1)]
    return Grid(["epoch", *names], rows)


def _setting_text(value: object) -> str:
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ", ".join(value)
    return value if isinstance(value, str) else json.dumps(value)


def _data_url(media_type: str, data: bytes) -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"
