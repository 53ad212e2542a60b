"""Write figures as JSON and CSV, and read them from JSON."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence

from ..files import parse_json


def to_json(figures: Mapping[str, Sequence[float]]) -> str:
    """Return an object of lists. JSON has no NaN and no infinity: they are ``null`` and ``"Infinity"``."""
    return json.dumps({name: [_to_json(value) for value in values] for name, values in figures.items()})


def from_json(text: str | bytes) -> dict[str, list[float]]:
    """Return the figures that `to_json` wrote.

    Raises AttributeError, TypeError or ValueError for text that is not a JSON object of lists of numbers.
    """
    return {name: [_from_json(item) for item in values] for name, values in parse_json(text).items()}


def to_csv(figures: Mapping[str, Sequence[float]], epochs: int) -> str:
    """Return a header and one line per epoch, with the epoch in front; an empty cell is NaN."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(["epoch", *figures])
    for epoch in range(epochs):
        writer.writerow([epoch + 1, *(_to_cell(values[epoch]) for values in figures.values())])
    return text.getvalue()


def _to_cell(value: float) -> str:
    return "" if math.isnan(value) else repr(value)


def _to_json(value: float) -> float | str | None:
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return None if math.isnan(value) else value


def _from_json(item: float | str | None) -> float:
    return math.nan if item is None else float(item)
