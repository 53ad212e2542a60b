"""The figures of a fit, as tables, JSON and CSV."""

from __future__ import annotations

from .format import figure_text
from .history import History

__all__ = ["History", "figure_text"]
