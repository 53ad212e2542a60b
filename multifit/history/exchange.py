"""Figures as JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["csv_text", "figures_of", "json_text"]


def json_text(figures: Mapping[str, Sequence[float]]) -> str:
    """Return an object of lists; NaN is ``null``, an infinite value is a string: JSON has no such numbers."""
    return json.dumps({name: [_to_json(value) for value in values] for name, values in figures.items()})


def figures_of(text: str) -> dict[str, list[float]]:
    """Return the figures that `json_text` wrote.

    Raises
    ------
    AttributeError, TypeError, ValueError
        It is no JSON, or not an object of lists of numbers.
    """
    return {name: [_from_json(item) for item in values] for name, values in json.loads(text).items()}


def csv_text(figures: Mapping[str, Sequence[float]], epochs: int) -> str:
    """Return a header and a line for each epoch; the epochs come first, an empty cell is NaN."""
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


def _from_json(item: Any) -> float:
    return math.nan if item is None else float(item)
