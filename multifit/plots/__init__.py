"""Plots of a history's figures, drawn by matplotlib."""

from __future__ import annotations

from .curves import compare_curves, curves
from .figure import new_figure, to_svg
from .selection import chosen

__all__ = ["chosen", "compare_curves", "curves", "new_figure", "to_svg"]
