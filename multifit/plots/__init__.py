"""Plots of a history's figures, drawn by matplotlib."""

from __future__ import annotations

from .curves import compare_curves, curves, select_figures
from .panels import new_figure, to_svg
from .tasks import task_curves, task_figures

__all__ = [
    "compare_curves",
    "curves",
    "new_figure",
    "select_figures",
    "task_curves",
    "task_figures",
    "to_svg",
]
