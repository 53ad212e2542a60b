"""Results as JSON, with every value, and as Markdown."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import Mapping, Sequence

from multifit.files import atomic_write

from .rows import Row
from .targets import Verdict, verdicts

__all__ = ["markdown", "table_lines", "write"]


def write(folder: Path, time: str, machine: Mapping[str, str], rows: Sequence[Row]) -> Path:
    """Write ``<time>.json`` and ``<time>.md``; return the path of the latter."""
    results = {
        "time": time,
        "machine": dict(machine),
        "rows": [
            {**vars(row), "figures": {name: each._asdict() for name, each in row.figures().items()}}
            for row in rows
        ],
        "targets": [
            {**each.target._asdict(), "measured": each.measured, "met": each.met} for each in verdicts(rows)
        ],
    }
    folder.mkdir(parents=True, exist_ok=True)
    atomic_write(folder / f"{time}.json", json.dumps(results, indent=1) + "\n")
    path = folder / f"{time}.md"
    atomic_write(path, markdown(time, machine, rows))
    return path


def markdown(time: str, machine: Mapping[str, str], rows: Sequence[Row]) -> str:
    """Return the targets, then the tables: medians, and quartiles in brackets."""
    parts = [f"# Benchmarks, {time}", ", ".join(f"{name}: {value}" for name, value in machine.items())]
    judged = verdicts(rows)
    if judged:
        met = sum(each.met for each in judged)
        parts += ["## Targets", f"{met} of {len(judged)} are met.", _targets(judged)]
    for (table, unit), group in groupby(rows, key=lambda row: (row.table, row.unit)):
        parts += [f"## {table}, {unit}", _table(list(group))]
    return "\n\n".join(parts) + "\n"


def _targets(judged: Sequence[Verdict]) -> str:
    lines = [
        [
            *each.target[:3],
            f"{each.measured:.3f}",
            f"{each.target.limit:g}",
            "met" if each.met else "**not met**",
        ]
        for each in judged
    ]
    return table_lines(["table", "case", "figure", "measured", "at most", ""], lines)


def _table(rows: Sequence[Row]) -> str:
    """Return one table; the cell of a contender that a case does not have is empty."""
    figures = [row.figures() for row in rows]
    names = list(dict.fromkeys(name for row_figures in figures for name in row_figures))
    names.sort(key=lambda name: name.startswith("/ "))  # ratios after the values
    cells = [
        [row.case, *(str(row_figures.get(name, "")) for name in names)]
        for row, row_figures in zip(rows, figures)
    ]
    return table_lines(["", *names], cells)


def table_lines(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown, whose columns after the first are numbers."""
    lines = [header, ["---"] + ["--:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
