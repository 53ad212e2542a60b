"""The figures of a fit, as tables, JSON and CSV."""

from __future__ import annotations

from .format import LAST_EPOCH_HEADERS, figure_text, last_epoch_rows
from .history import History

__all__ = ["LAST_EPOCH_HEADERS", "History", "figure_text", "last_epoch_rows"]
