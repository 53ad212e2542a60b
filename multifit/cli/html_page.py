"""Render the page from its templates: one file that needs no other, and no script."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jinja2

from ..handlers.history import LAST_EPOCH_HEADERS, History, figure_text, last_epoch_rows
from ..handlers.plots import compare_curves, curves, data_url, task_curves, task_figures, to_svg
from ..utils.arguments import PathLike, checked
from ..utils.files import atomic_write
from ..utils.stages import split_figure
from .runs import RunFolder, read_run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = 12  # figures per table


class Grid(NamedTuple):
    """A table. The first cell of each row is the row's title."""

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]


@checked
def write_report(runs: PathLike | Sequence[PathLike], path: PathLike | None = None) -> Path:
    """Write an HTML page about a run or several, as ``multifit report`` does, and return its path.

    `runs` are folders that ``fit(output=...)`` or ``multifit train`` has written; `path` defaults to
    ``report.html`` in the first of them. Raises ValueError if `runs` is empty, or not of runs.
    """
    listed = [runs] if isinstance(runs, (str, os.PathLike)) else runs
    folders = [Path(run) for run in listed]
    if not folders:
        raise ValueError("runs is empty; give the folder of a run, or those of several")
    target = folders[0] / "report.html" if path is None else Path(path)
    atomic_write(target, page([read_run(folder) for folder in folders]))
    return target


def page(runs: Sequence[RunFolder]) -> str:
    """Return an HTML page about runs, with its style and pictures inside; several are also compared."""
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("multifit.cli"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return templates.get_template("page.html").render(
        sections=[_section(run, f"run-{number}") for number, run in enumerate(runs, 1)],
        comparison=_comparison(runs) if len(runs) > 1 else None,
    )


def _section(run: RunFolder, anchor: str) -> dict[str, Any]:
    """Return what the page shows of one run; `anchor` is its id on the page."""
    history = run.history
    undeclared = {
        name: values
        for name, values in history.items()
        if split_figure(name)[1].partition(".")[0] not in run.declared
    }
    of_tasks = task_figures(undeclared)
    others = {name: values for name, values in history.items() if name not in of_tasks}
    names = list(history)
    draw = partial(compare_curves, run.seeds) if run.seeds else partial(curves, others)
    return {
        "run": run,
        "anchor": anchor,
        "facts": _facts(run.record),
        "curves": _drawing(draw) if history else None,
        "compares_tasks": bool(of_tasks),
        "tasks": _drawing(lambda: task_curves(undeclared)) if of_tasks else None,
        "best": best_epoch(history, run.directions),
        "results": _results(run),
        "all_epochs": [
            _epochs(history, names[start : start + COLUMNS]) for start in range(0, len(names), COLUMNS)
        ],
        "pictures": {name: data_url("image/png", data) for name, data in run.pictures.items()},
    }


def _comparison(runs: Sequence[RunFolder]) -> dict[str, Any]:
    """Return what the page shows to compare runs: settings that differ, last figures, and curves."""
    settings = {run.name: _flat_settings(run) for run in runs}
    differing = {
        run: {
            name: value
            for name, value in values.items()
            if any(other.get(name) != value for other in settings.values())
        }
        for run, values in settings.items()
    }
    figures: dict[str, dict[str, str]] = {run.name: {} for run in runs}
    for run in runs:
        for name, value in run.history.last.items():
            figures[run.name][name] = figure_text(value, run.spread.last.get(name, math.nan))
    return {
        "settings": _side_by_side("setting", differing),
        "figures": _side_by_side("figure", figures),
        "curves": _drawing(lambda: compare_curves({run.name: run.history for run in runs})),
    }


def best_epoch(history: History, directions: Mapping[str, str]) -> str:
    """Return which epoch is the best, by the validation's loss or its first figure of known direction."""
    figures = ["val_loss", *(name for name in history if name.startswith("val_")), "train_loss"]
    for figure in figures:
        found = _best(figure, history, directions)
        if found is not None:
            epoch, value = found
            return f"The best epoch is {epoch} of {history.epochs}, by {figure}: {figure_text(value)}."
    return ""


def _results(run: RunFolder) -> Grid:
    """Return the figures of the last epoch, training beside validation, and the best with their epochs."""
    rows = []
    for row in last_epoch_rows(run.history.last, run.spread.last):
        bests = [_best(f"{prefix}_{row[0]}", run.history, run.directions) for prefix in ("val", "train")]
        epoch, value = next(filter(None, bests), (None, math.nan))
        rows.append([*row, *(["", ""] if epoch is None else [figure_text(value), str(epoch)])])
    return Grid([*LAST_EPOCH_HEADERS, "best", "in epoch"], rows)


def _best(figure: str, history: History, directions: Mapping[str, str]) -> tuple[int, float] | None:
    """Return the epoch in which a figure was best first, and its value; None if that is unknown."""
    sign = {"min": 1, "max": -1}.get(directions.get(figure, ""), 0)
    values = enumerate(history.get(figure, []), 1)
    measured = [(sign * value, epoch, value) for epoch, value in values if math.isfinite(value)]
    return min(measured)[1:] if sign and measured else None


def _epochs(history: History, names: Sequence[str]) -> Grid:
    columns = [map(figure_text, history[name]) for name in names]
    return Grid(["epoch", *names], [[str(epoch), *row] for epoch, row in enumerate(zip(*columns), 1)])


def _side_by_side(title: str, columns: Mapping[str, Mapping[str, str]]) -> Grid:
    """Return a table with a column per run, and a row for each name that any of them has."""
    names = dict.fromkeys(name for column in columns.values() for name in column)
    rows = [[name, *(column.get(name, "") for column in columns.values())] for name in names]
    return Grid([title, *columns], rows)


def _facts(record: Mapping[str, object]) -> dict[str, dict[str, str]]:
    """Return what the run was trained with, by title; options that were not used are left out."""
    run = {name: value for name, value in record.items() if value not in (None, [], "", False)}
    groups = {name: value for name, value in run.items() if isinstance(value, dict)}
    seconds = run.pop("seconds", None)
    if isinstance(seconds, (int, float)):
        run["duration"] = f"{seconds:.1f} s" if seconds < 60 else str(timedelta(seconds=round(seconds)))
    first = ("command", "started", "duration")
    facts = {name: run[name] for name in (*first, *run) if name in run and name not in groups}
    titled = {"run": facts, **groups}
    return {title.capitalize(): _texts(values) for title, values in titled.items() if values}


def _flat_settings(run: RunFolder) -> dict[str, str]:
    """Return all of ``settings.json`` on one level; a repeated name gets its group's name as a prefix."""
    left_out = ("command", "started", "seconds")
    flat = {name: v for name, v in run.record.items() if not isinstance(v, dict) and name not in left_out}
    for group, values in run.record.items():
        if isinstance(values, dict):
            flat.update({f"{group}.{name}" if name in flat else name: values[name] for name in values})
    return _texts(flat)


def _texts(settings: Mapping[str, object]) -> dict[str, str]:
    """Return settings from JSON as texts, written as on a command line."""
    return {
        name: ", ".join(value)
        if isinstance(value, list) and all(isinstance(item, str) for item in value)
        else value
        if isinstance(value, str)
        else json.dumps(value)
        for name, value in settings.items()
    }


def _drawing(draw: Callable[[], Figure]) -> str | None:
    """Return the figure that `draw` returns as an SVG image, or None without matplotlib."""
    try:
        return data_url("image/svg+xml", to_svg(draw()))
    except ImportError:
        return None
