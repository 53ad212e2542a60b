"""What a fit measured: one value per figure and epoch."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .errors import names, suggest
from .files import atomic_write
from .tables import table

__all__ = ["History", "figure_text"]


STAGES = ("train_", "val_")  # the prefixes of figures


class History(Mapping[str, "list[float]"]):
    """A mapping from a figure's name to its values, one per epoch; NaN where it was not measured.

    Parameters
    ----------
    figures : mapping of str to sequence of float, optional
        Values to begin with, equally many for each figure.

    Raises
    ------
    ValueError
        The figures have different numbers of values.
    """

    def __init__(self, figures: Mapping[str, Sequence[float]] | None = None) -> None:
        given = figures or {}
        self._figures = {name: [_number(value) for value in values] for name, values in given.items()}
        lengths = {name: len(values) for name, values in self._figures.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"a history needs one value per epoch for each figure; it was given {lengths}")
        self._epochs = max(lengths.values(), default=0)

    def __getitem__(self, figure: str) -> list[float]:
        if figure not in self._figures:
            raise KeyError(
                f'no figure "{figure}"{suggest(figure, self._figures)}; there are {names(self._figures)}'
            )
        return list(self._figures[figure])

    def __iter__(self) -> Iterator[str]:
        return iter(self._figures)

    def __len__(self) -> int:
        return len(self._figures)

    def __repr__(self) -> str:
        return f"History({self.epochs} epochs: {', '.join(self)})"

    @property
    def epochs(self) -> int:
        """The number of epochs, the open one included."""
        return self._epochs

    @property
    def last(self) -> dict[str, float]:
        """The values of the open, that is the last epoch; empty before the first."""
        return {name: values[-1] for name, values in self._figures.items()} if self._epochs else {}

    def open_row(self) -> None:
        """Begin an epoch: every figure is NaN until it is recorded."""
        self._epochs += 1
        for values in self._figures.values():
            values.append(math.nan)

    def record(self, figures: Mapping[str, float]) -> None:
        """Set values of the open epoch; a figure that is new is NaN in the epochs before.

        Parameters
        ----------
        figures : mapping of str to float
            The values by figure; a value recorded before in the same epoch is replaced.

        Raises
        ------
        RuntimeError
            No epoch has begun.
        """
        if not self._epochs:
            raise RuntimeError("no epoch has begun: call open_row() before record()")
        for name, value in figures.items():
            self._figures.setdefault(name, [math.nan] * self._epochs)[-1] = _number(value)

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the history as JSON, and write it to `path` (whole or not at all) where one is given.

        An object of lists, one per figure. NaN, which JSON does not know, is ``null``; an infinite value is
        the string ``"Infinity"`` or ``"-Infinity"``.
        """
        figures = {name: [_to_json(value) for value in values] for name, values in self._figures.items()}
        text = json.dumps(figures)
        if path is not None:
            atomic_write(path, text + "\n")
        return text

    @classmethod
    def from_json(cls, source: str | os.PathLike[str]) -> History:
        """Read what `to_json` wrote.

        Parameters
        ----------
        source : str or path
            The JSON text (it begins with a brace) or the path of a file.

        Raises
        ------
        ValueError
            It is no JSON, or not an object of lists of numbers, equally many in each.
        """
        is_text = isinstance(source, str) and source.lstrip().startswith("{")
        text = str(source) if is_text else Path(source).read_text("utf-8")
        try:
            figures = json.loads(text)
            return cls({name: [_from_json(item) for item in values] for name, values in figures.items()})
        except (AttributeError, TypeError, ValueError) as error:
            raise ValueError(f"not a history (a JSON object of lists of numbers): {error}") from error

    def to_frame(self) -> Any:
        """Return a `pandas.DataFrame`: a column per figure, a row per epoch, indexed by the epoch from 1.

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
        """Return the figures as aligned text: a header, a rule and one row per epoch; ``-`` is not measured.

        Parameters
        ----------
        width : int, optional
            Characters a line may have. What does not fit follows in further blocks, each with the epochs; by
            default all is one block.
        """
        epochs = _column("epoch", [str(epoch + 1) for epoch in range(self._epochs)])
        blocks: list[list[list[str]]] = [[epochs]]
        for name, values in self._figures.items():
            column = _column(name, [figure_text(value) for value in values])
            used = sum(len(each[0]) + 2 for each in blocks[-1])
            if width is not None and len(blocks[-1]) > 1 and used + len(column[0]) > width:
                blocks.append([epochs])
            blocks[-1].append(column)
        rows = ([list(row) for row in zip(*block)] for block in blocks)
        return "\n\n".join(table(lines, header) for header, *lines in rows)

    def summary(self) -> str:
        """Return the last epoch's figures as aligned text, training beside validation."""
        last = self.last
        names = dict.fromkeys(name.partition("_")[2] for name in last if name.startswith(STAGES))
        rows = [[name, *(_cell(last, stage + name) for stage in STAGES)] for name in names]
        rows += [[name, _cell(last, name), ""] for name in last if not name.startswith(STAGES)]
        columns = list(zip(("figure", "train", "val"), *rows))
        width = [max(map(len, column)) for column in columns[1:]]
        header, *lines = [
            [name, *(cell.rjust(w) for cell, w in zip(cells, width))] for name, *cells in zip(*columns)
        ]
        return table(lines, header)


def figure_text(value: float) -> str:
    """Return a figure as it is shown everywhere: four decimals where they tell something, ``-`` for NaN."""
    if math.isnan(value):
        return "-"
    return f"{value:.4f}" if value == 0 or 1e-3 <= abs(value) < 1e4 else f"{value:.3e}"


def _cell(figures: Mapping[str, float], name: str) -> str:
    return figure_text(figures[name]) if name in figures else ""


def _column(title: str, cells: Sequence[str]) -> list[str]:
    width = max(map(len, [title, *cells]))
    return [cell.rjust(width) for cell in [title, *cells]]


def _number(value: float) -> float:
    # One NaN for all: lists then compare equal, because Python compares items by identity first.
    number = float(value)
    return math.nan if math.isnan(number) else number


def _to_json(value: float) -> float | str | None:
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return None if math.isnan(value) else value


def _from_json(item: Any) -> float:
    return math.nan if item is None else float(item)
