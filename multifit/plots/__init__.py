"""Plots of a history's figures, drawn by matplotlib."""

from __future__ import annotations

from .curves import compare_curves, curves, select_figures
from .panels import new_figure, to_svg

__all__ = ["compare_curves", "curves", "new_figure", "select_figures", "to_svg"]
