"""What a fit measured: the history, and how figures are shown and exchanged."""

from __future__ import annotations

from .history import History
from .wording import figure_text

__all__ = ["History", "figure_text"]
