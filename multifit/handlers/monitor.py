"""Watch whether a figure improves."""

from __future__ import annotations

import math

from ..arguments import finite_number
from ..errors import names, shown, suggest
from ..events import EstimatorProtocol

WORST = {"min": math.inf, "max": -math.inf}


class Monitor:
    """A figure, the direction in which it is better, and its best value so far.

    `owner` is the handler's name in messages. An improvement must be better than the best by more than
    `min_delta`. Raises ValueError if an argument is not valid.
    """

    def __init__(self, owner: str, figure: str, mode: str | None, min_delta: float) -> None:
        check_monitor(owner, figure, mode)
        self.figure, self.mode = figure, mode
        self.min_delta = finite_number(f"{owner}: min_delta", min_delta, least=0)
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


def check_monitor(owner: str, figure: object, mode: object) -> None:
    """Raise ValueError if `figure` is not a string, or `mode` is none of "min", "max" and None."""
    if not isinstance(figure, str):
        raise ValueError(f'{owner}: monitor is {shown(figure)}; valid is a name such as "val_loss"')
    if mode is not None and mode not in WORST:
        raise ValueError(f'{owner}: mode is "{mode}"{suggest(mode, WORST)}; valid are {names(WORST)}')
