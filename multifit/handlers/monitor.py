"""Watch whether a figure improves."""

from __future__ import annotations

import math

from ..errors import counted
from ..events import EstimatorProtocol
from ..history import figure_text

WORST = {"min": math.inf, "max": -math.inf}


class Monitor:
    """A figure, the direction in which it is better, and its best value so far.

    An improvement must be better than the best by more than `min_delta`.
    """

    def __init__(self, figure: str, mode: str | None, min_delta: float = 0.0) -> None:
        self.figure, self.mode, self.min_delta = figure, mode, min_delta
        self.direction = mode or "min"
        self.best: float | None = None

    def begin(self, estimator: EstimatorProtocol) -> None:
        """Look up the direction, and forget the best value."""
        # If the direction is not known, the estimator raises at the first batch, before any update.
        self.direction = self.mode or estimator.direction(self.figure) or "min"
        self.best = None

    def value(self, estimator: EstimatorProtocol) -> float:
        """Return the epoch's value; NaN if the figure was not measured."""
        return estimator.history.last.get(self.figure, math.nan)

    def improved(self, value: float) -> bool:
        """Return whether `value` is an improvement, and if so, remember it as the best."""
        sign = 1.0 if self.direction == "min" else -1.0
        if self.best is not None and not sign * value < sign * self.best - self.min_delta:
            return False
        self.best = value
        return True

    def reason(self, epochs: int) -> str:
        """Return in words that the figure has not improved for a number of epochs."""
        return f"{self.figure} has not improved on {self.best_text()} for {counted(epochs, 'epoch')}"

    def best_text(self) -> str:
        """Return the best value as tables show it."""
        return figure_text(math.nan if self.best is None else self.best)
