"""The plan of one stage: what it does with a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Iterable, Mapping, NamedTuple

from ..spec.links import Link
from ..tables import table, terminal_width, wrap

ARRAYS = ("input", "output", "label")
VALUE_WIDTH = 16  # of a metric's figures, which may be many


class Row(NamedTuple):
    """One line of a stage's plan."""

    what: str  # "input", "output", "label", "loss", "part" or "metric"
    name: str
    value: str  # shape and dtype of the array; for a metric, its figures
    goes_to: str  # where an array goes, or how a loss or metric is computed


@dataclass(frozen=True)
class StagePlan:
    """What one stage does with a batch."""

    rows: tuple[Row, ...]
    how: str  # what was traced into a graph, and why something was not
    links: tuple[Link, ...] = ()

    def to_text(self, width: int | None = None) -> str:
        """Return two tables that fit `width`, one for the arrays and one for the losses and metrics."""
        arrays = [row for row in self.rows if row.what in ARRAYS]
        computed = [row._replace(value=_value(row)) for row in self.rows if row.what not in ARRAYS]
        parts = [table(("what", "name", "array", "goes to"), arrays, width, wrap_last=True)]
        if computed:
            parts.append(table(("what", "name", "value", "computed as"), computed, width, wrap_last=True))
        return "\n\n".join([*parts, wrap(self.how, terminal_width() if width is None else width)])

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> StagePlan:
        """Return a stage's plan from what ``dataclasses.asdict`` returned, directly or by way of JSON.

        Raises KeyError, TypeError or ValueError for anything else.
        """
        rows = tuple(Row(*_sized(texts(row), 4)) for row in saved["rows"])
        links = tuple(Link(*_sized(texts(link), 5)) for link in saved["links"])
        linked = {row[:2] for row in rows if row.what in (*ARRAYS, "loss", "metric")}
        for what, name, to, target, _ in links:
            if not {(what, name), (to, target)} <= linked:
                raise ValueError(f"{what} {name} or {to} {target} has no row")
        return cls(rows, str(saved["how"]), links)


def _value(row: Row) -> str:
    if row.what == "metric" and row.value == row.name:
        return "a number"
    return wrap(row.value, VALUE_WIDTH)


def texts(items: Iterable[Any]) -> tuple[str, ...]:
    """Return a list from JSON as a tuple of strings; a string raises ValueError."""
    if isinstance(items, str):
        raise ValueError(f"{items!r} is not a list")
    return tuple(map(str, items))


def _sized(items: tuple[str, ...], size: int) -> tuple[str, ...]:
    if len(items) != size:
        raise ValueError(f"{items} has {len(items)} items, not {size}")
    return items
