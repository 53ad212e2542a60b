"""What a fit measured: one value per figure and epoch."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import counted, names, suggest
from ..files import atomic_write
from .exchange import csv_text, figures_of, json_text
from .wording import all_epochs, last_epoch

__all__ = ["History"]


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
        return f"History({counted(self.epochs, 'epoch')}: {', '.join(self)})"

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
        text = json_text(self._figures)
        if path is not None:
            atomic_write(path, text + "\n")
        return text

    def to_csv(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the history as CSV, and write it to `path` (whole or not at all) where one is given.

        A header, then a line for each epoch: the epoch, counted from 1, and a cell for every figure with all
        its digits; the cell is empty where the figure was not measured. An infinite value is ``inf`` or
        ``-inf``. Lines end as RFC 4180 has it, with a carriage return and a line feed.
        """
        text = csv_text(self._figures, self._epochs)
        if path is not None:
            atomic_write(path, text)
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
            return cls(figures_of(text))
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
        return all_epochs(self._figures, self._epochs, width)

    def summary(self) -> str:
        """Return the last epoch's figures as aligned text, training beside validation."""
        return last_epoch(self.last)


def _number(value: float) -> float:
    # One NaN for all: lists then compare equal, because Python compares items by identity first.
    number = float(value)
    return math.nan if math.isnan(number) else number
