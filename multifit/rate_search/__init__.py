"""The search for a learning rate, and its result."""

from __future__ import annotations

from .finder import find_learning_rate
from .result import RateSearch

__all__ = ["RateSearch", "find_learning_rate"]
