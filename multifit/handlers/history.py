"""The figures of a fit: one value per figure and epoch, as tables, JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from ..utils.files import atomic_write, parse_json
from ..utils.stages import STAGE_OF_PREFIX, split_figure
from ..utils.tables import UNLIMITED, html_table, table, terminal_width
from ..utils.text import counted, quoted, shown, suggest
from .plots import curves, data_url, to_svg

LAST_EPOCH_HEADERS = ("figure", *STAGE_OF_PREFIX)


class History(Mapping[str, "list[float]"]):
    """A mapping from a figure's name to its values, one per epoch; NaN where it was not measured.

    Parameters
    ----------
    figures : mapping of str to sequence of float, optional
        Initial values; all figures must have the same number of values.

    Raises
    ------
    ValueError
        The figures have different numbers of values.
    """

    def __init__(self, figures: Mapping[str, Sequence[float]] | None = None) -> None:
        try:
            items = {} if figures is None else dict(figures)
            self._figures = {str(name): [_number(v) for v in values] for name, values in items.items()}
        except (TypeError, ValueError, OverflowError):
            raise ValueError(
                f"History: figures is {shown(figures)}; valid is a mapping of names to lists of numbers"
            ) from None
        lengths = {name: len(values) for name, values in self._figures.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"a history needs one value per epoch for each figure; there are {lengths}")
        self._epochs = max(lengths.values(), default=0)

    def __getitem__(self, figure: str) -> list[float]:
        if figure not in self._figures:
            raise KeyError(
                f'no figure "{figure}"{suggest(figure, self._figures)}; there are {quoted(self._figures)}'
            )
        return list(self._figures[figure])

    def __iter__(self) -> Iterator[str]:
        return iter(self._figures)

    def __len__(self) -> int:
        return len(self._figures)

    def __repr__(self) -> str:
        return f"History({counted(self.epochs, 'epoch')}: {', '.join(self)})"

    def _repr_html_(self) -> str:
        """Return the last epoch's figures and, with matplotlib, the curves, for a notebook."""
        html = html_table(f"after epoch {self.epochs}", LAST_EPOCH_HEADERS, last_epoch_rows(self.last))
        with suppress(ImportError):
            html += f'<img src="{data_url("image/svg+xml", to_svg(curves(self)))}">'
        return html

    @property
    def epochs(self) -> int:
        """The number of epochs, including the current one."""
        return self._epochs

    @property
    def last(self) -> dict[str, float]:
        """The values of the current (last) epoch; empty before the first."""
        return {name: values[-1] for name, values in self._figures.items()} if self._epochs else {}

    def open_row(self) -> None:
        """Begin an epoch. Each figure is NaN until it is recorded."""
        self._epochs += 1
        for values in self._figures.values():
            values.append(math.nan)

    def record(self, figures: Mapping[str, float]) -> None:
        """Set values of the current epoch. A new figure is NaN in the epochs before.

        Parameters
        ----------
        figures : mapping of str to float
            The values by figure. They replace values recorded earlier in the same epoch.

        Raises
        ------
        RuntimeError
            No epoch has begun yet.
        """
        if not self._epochs:
            raise RuntimeError("no epoch has begun: call open_row() before record()")
        for name, value in figures.items():
            self._figures.setdefault(name, [math.nan] * self._epochs)[-1] = _number(value)

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the history as JSON.

        The JSON is an object with one list per figure. JSON has no NaN and no infinity: NaN becomes ``null``,
        an infinite value the string ``"Infinity"`` or ``"-Infinity"``.

        Parameters
        ----------
        path : str or path, optional
            A file to write the JSON to, atomically.

        Returns
        -------
        str
            The JSON.
        """
        text = json.dumps({name: list(map(_to_json, values)) for name, values in self._figures.items()})
        if path is not None:
            atomic_write(path, text + "\n")
        return text

    def to_csv(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the history as CSV.

        There is a header and one line per epoch: the epoch, counted from 1, and each figure with all its
        digits. A cell is empty if the figure was not measured; an infinite value is ``inf`` or ``-inf``.
        Lines end with a carriage return and a line feed, as RFC 4180 says.

        Parameters
        ----------
        path : str or path, optional
            A file to write the CSV to, atomically.

        Returns
        -------
        str
            The CSV.
        """
        text = io.StringIO(newline="")
        writer = csv.writer(text)
        writer.writerow(["epoch", *self])
        for epoch in range(self._epochs):
            row = [values[epoch] for values in self._figures.values()]
            writer.writerow([epoch + 1, *("" if math.isnan(value) else repr(value) for value in row)])
        if path is not None:
            atomic_write(path, text.getvalue())
        return text.getvalue()

    @classmethod
    def from_json(cls, source: str | os.PathLike[str]) -> History:
        """Return the history that `to_json` wrote.

        Parameters
        ----------
        source : str or path
            The JSON text, which begins with a brace, or the path of a file.

        Raises
        ------
        OSError
            The file cannot be read.
        ValueError
            The text is not a JSON object of lists of numbers, all of the same length.
        """
        is_text = isinstance(source, str) and source.lstrip().startswith("{")
        text = str(source) if is_text else Path(source).read_bytes()
        try:
            figures = parse_json(text).items()
            return cls(
                {name: [math.nan if v is None else float(v) for v in values] for name, values in figures}
            )
        except (AttributeError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"not a history (a JSON object of lists of numbers): {error}") from error

    def to_frame(self) -> Any:
        """Return a `pandas.DataFrame` with a column per figure and a row per epoch, counted from 1.

        Raises
        ------
        ImportError
            pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise ImportError("History.to_frame() needs pandas: pip install pandas") from error
        return pandas.DataFrame(self._figures, index=pandas.RangeIndex(1, self._epochs + 1, name="epoch"))

    def table(self, width: int | None = None) -> str:
        """Return the figures as a plain-text table; ``-`` marks NaN, mostly a figure that was not measured.

        There is one row per epoch. Columns that do not fit the line follow below, in further blocks.

        Parameters
        ----------
        width : int, optional
            The length of a line in characters. Defaults to the terminal's width, or 80 without a terminal.
        """
        width = terminal_width() if width is None else width
        epochs = ["epoch", *map(str, range(1, self._epochs + 1))]
        blocks, room = [[epochs]], 0
        for name, values in self._figures.items():
            column = [name, *map(figure_text, values)]
            needed = 2 + max(map(len, column))
            if needed > room and len(blocks[-1]) > 1:
                blocks.append([epochs])
            if len(blocks[-1]) == 1:
                room = width - max(map(len, epochs))
            blocks[-1].append(column)
            room -= needed
        rows = (list(zip(*block)) for block in blocks)
        return "\n\n".join(table(headers, lines, UNLIMITED) for headers, *lines in rows)

    def summary(self) -> str:
        """Return the last epoch's figures as a plain-text table, training beside validation."""
        return table(LAST_EPOCH_HEADERS, last_epoch_rows(self.last))


def seed_folders(folder: Path) -> list[Path]:
    """Return the folders of the runs that ``multifit train --seeds`` wrote, in the order of their seeds."""
    found = {path.parent.name[5:]: path.parent for path in folder.glob("seed-*/settings.json")}
    return [found[seed] for seed in sorted(filter(str.isdecimal, found), key=int)]


def over_seeds(histories: Sequence[History]) -> tuple[History, History]:
    """Return the mean of each figure in each epoch over runs, and its standard deviation, NaN for one run.

    A run that ended early counts with its last figures in the epochs after.
    """
    epochs, means, spreads = max(each.epochs for each in histories), {}, {}
    for name in dict.fromkeys(chain(*histories)):
        columns = [each.get(name, [math.nan] * (each.epochs or 1)) for each in histories]
        values = np.array([column + column[-1:] * (epochs - len(column)) for column in columns])
        means[name] = list(values.mean(axis=0))
        spreads[name] = list(values.std(axis=0, ddof=1)) if len(values) > 1 else [math.nan] * epochs
    return History(means), History(spreads)


def figure_text(value: float, spread: float = math.nan, form: str = "") -> str:
    """Return a figure with four decimals, in scientific notation if it is small or large; ``-`` for NaN.

    Its `spread` over seeds follows after ±. Another `form` may be given.
    """
    if math.isnan(value):
        return "-"
    form = form or (".4f" if value == 0 or 1e-3 <= abs(value) < 1e4 else ".3e")
    text = f"{value:{form}}"
    return text if math.isnan(spread) else f"{text} ± {figure_text(spread, form=form.strip('+'))}"


def last_epoch_rows(last: Mapping[str, float], spread: Mapping[str, float] | None = None) -> list[list[str]]:
    """Return the rows of a table of one epoch's figures: name, training and validation."""
    rows: dict[tuple[bool, str], list[str]] = {}  # those of no stage have a row of their own, at the end
    for figure, value in sorted(last.items(), key=lambda item: not split_figure(item[0])[0]):
        prefix, name = split_figure(figure)
        row = rows.setdefault((bool(prefix), name), [name, "", ""])
        text = figure_text(value, (spread or {}).get(figure, math.nan))
        row[LAST_EPOCH_HEADERS.index(prefix) if prefix else 1] = text
    return list(rows.values())


def _number(value: float) -> float:
    # Always the same NaN object: lists with NaN then compare equal, because Python compares identities first.
    number = float(value)
    return math.nan if math.isnan(number) else number


def _to_json(value: float) -> float | str | None:
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return None if math.isnan(value) else value
