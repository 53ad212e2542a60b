"""Draw what the tasks of a run do to each other: their weights, and how their gradients compare."""

from __future__ import annotations

import math
from itertools import combinations
from typing import TYPE_CHECKING, Mapping, Sequence

from ..stages import EVALUATE, TRAIN, figure_name
from .curves import Figures
from .panels import Line, draw_panel, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WRITTEN = 8  # with at most this many tasks, every cosine is written into the map


def task_figures(history: Figures) -> list[str]:
    """Return the names of the figures that `task_curves` draws, none if tasks were not compared."""
    weights, norms = _by_task(history, "weight"), _by_task(history, "gradnorm")
    names = [*weights.values(), *norms.values(), *_cosines(history, list(norms)).values()]
    conflict = figure_name(TRAIN, "conflict")
    return [*names, conflict] if norms and conflict in history else names


def task_curves(history: Figures) -> Figure:
    """Draw weights, lengths of gradients and the share of conflicts over the epochs, and a map of cosines.

    The map has the cosines of the last epoch in which they were measured. Raises ImportError without
    matplotlib.
    """
    weights, norms = _by_task(history, "weight"), _by_task(history, "gradnorm")
    panels = {"weights": weights, "lengths of gradients": norms}
    conflict = figure_name(TRAIN, "conflict")
    if norms and conflict in history:
        panels["share of pairs that conflict"] = {"conflict": conflict}
    panels = {title: figures for title, figures in panels.items() if figures}
    cosines = _last_cosines(history, list(norms))
    count = len(panels) + bool(cosines)
    figure = new_figure(4.4 * count, 3.4)
    for number, (title, figures) in enumerate(panels.items(), 1):
        lines = [Line(task, history[name], i, False) for i, (task, name) in enumerate(figures.items())]
        draw_panel(figure.add_subplot(1, count, number), title, lines)
    if cosines:
        _draw_map(figure.add_subplot(1, count, count), list(norms), cosines)
    return figure


def _by_task(history: Figures, kind: str) -> dict[str, str]:
    """Return the figures of a kind that only training has, by task; none unless there are several tasks."""
    start, evaluated = figure_name(TRAIN, f"{kind}_"), figure_name(EVALUATE, f"{kind}_")
    tasks = {name[len(start) :]: name for name in history if name.startswith(start)}
    tasks = {task: name for task, name in tasks.items() if evaluated + task not in history}
    return tasks if len(tasks) > 1 else {}


def _cosines(history: Figures, tasks: Sequence[str]) -> dict[tuple[str, str], str]:
    pairs = {(a, b): figure_name(TRAIN, f"cosine_{a}_{b}") for a, b in combinations(tasks, 2)}
    return {pair: name for pair, name in pairs.items() if name in history}


def _last_cosines(history: Figures, tasks: Sequence[str]) -> dict[tuple[str, str], float]:
    values = {
        pair: [value for value in history[name] if math.isfinite(value)]
        for pair, name in _cosines(history, tasks).items()
    }
    return {pair: numbers[-1] for pair, numbers in values.items() if numbers}


def _draw_map(axes: Axes, tasks: Sequence[str], cosines: Mapping[tuple[str, str], float]) -> None:
    rows = [
        [1.0 if a == b else cosines.get((a, b), cosines.get((b, a), math.nan)) for b in tasks] for a in tasks
    ]
    image = axes.imshow(rows, cmap="RdBu", vmin=-1, vmax=1)
    axes.figure.colorbar(image, ax=axes, shrink=0.8)
    axes.set_title("cosines of gradients", fontsize=11)
    axes.set_xticks(range(len(tasks)), tasks, rotation=45, ha="right", fontsize=8, parse_math=False)
    axes.set_yticks(range(len(tasks)), tasks, fontsize=8, parse_math=False)
    for y, row in enumerate(rows if len(tasks) <= WRITTEN else ()):
        for x, value in enumerate(row):
            colour = "white" if abs(value) > 0.6 else "black"
            axes.text(x, y, f"{value:.2f}", ha="center", va="center", fontsize=8, color=colour)
