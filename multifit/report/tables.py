"""Figures and settings as HTML tables."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from ..history import History, figure_text
from .markup import Markup, Node, join, tag

__all__ = ["all_epochs", "comparison", "grid", "last_epoch", "pairs"]

STAGES = ("train", "val")
COLUMNS = 12  # figures that stand beside each other


def grid(header: Sequence[Node], rows: Iterable[Sequence[Node]], kind: str = "figures") -> Markup:
    """Return a table; the first cell of each row is its head."""
    head = tag("tr", *(tag("th", each, scope="col") for each in header))
    body = (tag("tr", tag("th", name, scope="row"), *(tag("td", c) for c in cells)) for name, *cells in rows)
    return tag("table", tag("thead", head), tag("tbody", *body), class_=kind)


def pairs(title: str, facts: Mapping[str, object]) -> Markup:
    """Return names and values under a title; nothing where there are none."""
    if not facts:
        return join()
    rows = (tag("tr", tag("th", name, scope="row"), tag("td", value_text(v))) for name, v in facts.items())
    return tag("div", tag("h4", title), tag("table", tag("tbody", *rows), class_="facts"))


def value_text(value: object) -> str:
    """Return a setting as it would be written on a command line."""
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ", ".join(value)
    return value if isinstance(value, str) else json.dumps(value)


def last_epoch(history: History) -> Markup:
    """Return the last epoch's figures, training beside validation."""
    rows = [
        [name, *(_cell(found.get(stage)) for stage in STAGES)] for name, found in _staged(history).items()
    ]
    rest = {name: value for name, value in history.last.items() if not name.startswith(("train_", "val_"))}
    rows += [[name, _cell(value), ""] for name, value in rest.items()]
    return grid(["figure", *STAGES], rows)


def all_epochs(history: History) -> Markup:
    """Return every figure of every epoch, in tables of not too many columns."""
    names = list(history)
    blocks = [names[i : i + COLUMNS] for i in range(0, len(names), COLUMNS)]
    tables = []
    for block in blocks:
        columns = [[figure_text(value) for value in history[name]] for name in block]
        rows = [[str(epoch), *cells] for epoch, cells in enumerate(zip(*columns), 1)]
        tables.append(grid(["epoch", *block], rows))
    return join(*tables)


def comparison(title: str, columns: Mapping[str, Mapping[str, str]]) -> Markup:
    """Return a table with a column for each run, and a row for each name that any of them has."""
    names = dict.fromkeys(name for column in columns.values() for name in column)
    rows = [[name, *(column.get(name, "") for column in columns.values())] for name in names]
    return grid([title, *columns], rows)


def _staged(history: History) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for figure, value in history.last.items():
        stage, _, name = figure.partition("_")
        if stage in STAGES and name:
            found.setdefault(name, {})[stage] = value
    return found


def _cell(value: float | None) -> str:
    return "" if value is None else figure_text(value)
