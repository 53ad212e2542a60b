"""Watch whether figures improve."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated

from ..utils.arguments import FigureName, Valid
from ..utils.protocols import MultiEstimator
from ..utils.text import counted, quoted, suggest
from .history import figure_text

FigureFunction = Callable[[Mapping[str, float]], float]
FigureNames = Annotated[Sequence[str], Valid("a list of names", lambda names: len(names) > 0)]
Monitored = FigureName | FigureNames | FigureFunction
"""The name of a figure, several names, or a function of an epoch's figures by name."""


class Monitor:
    """Some figures, the directions in which they are better, and their best values so far.

    An improvement must be better than the best by more than `min_delta`. `owner` is the name of the handler.
    Raises ValueError if `monitored` is a function and there is no `mode`.
    """

    def __init__(self, owner: str, monitored: Monitored, mode: str | None, min_delta: float = 0.0) -> None:
        if callable(monitored) and mode is None:
            raise ValueError(f'{owner}: monitor is a function: say which is better, mode="min" or mode="max"')
        self._owner = owner
        self._function = monitored if callable(monitored) else None
        names = [getattr(monitored, "__name__", "function")] if callable(monitored) else monitored
        self.figures = [names] if isinstance(names, str) else list(names)
        self.mode, self.min_delta = mode, min_delta
        self.directions = dict.fromkeys(self.figures, mode or "min")
        self.best: dict[str, float] = {}
        self._missing: set[str] = set()  # figures that a warning was logged about

    def begin(self, estimator: MultiEstimator) -> None:
        """Look up the directions, and forget the best values."""
        # If a direction is not known, the estimator raises at the first batch, before any update.
        for figure in self.figures:
            self.directions[figure] = self.mode or estimator.direction(figure) or "min"
        self.best, self._missing = {}, set()

    def values(self, estimator: MultiEstimator) -> dict[str, float]:
        """Return the epoch's values of the figures that were measured."""
        last = estimator.history.last
        if self._function is None:
            for name in self.figures:
                self._warn_if_missing(name, estimator)
            return {name: last[name] for name in self.figures if not math.isnan(last.get(name, math.nan))}
        value = float(self._function(last))
        return {} if math.isnan(value) else {self.figures[0]: value}

    def _warn_if_missing(self, name: str, estimator: MultiEstimator) -> None:
        """Log a warning, once in a fit, if a figure that is not the estimator's own was never recorded."""
        history = estimator.history
        if name in history or name in self._missing or estimator.direction(name) is not None:
            return
        self._missing.add(name)
        figure, epoch = f'"{name}"{suggest(name, history)}', estimator.state.epoch + 1
        message = (
            "%s: there is no figure %s at the end of epoch %d; figures are %s; if a handler records it, list "
            "that one first, or give it a lower priority"
        )
        estimator.logger.warning(message, self._owner, figure, epoch, quoted(history))

    def finite_values(self, estimator: MultiEstimator) -> dict[str, float]:
        """Return the epoch's values that are finite."""
        return {name: value for name, value in self.values(estimator).items() if math.isfinite(value)}

    def improved(self, values: Mapping[str, float]) -> bool:
        """Return whether any value is an improvement; every improvement becomes the best value."""
        better = {}
        for name, value in values.items():
            sign = 1.0 if self.directions[name] == "min" else -1.0
            if name not in self.best or sign * value < sign * self.best[name] - self.min_delta:
                better[name] = value
        self.best.update(better)
        return bool(better)

    def reason(self, epochs: int) -> str:
        """Return a text that says that no figure has improved for a number of epochs."""
        bests = {name: figure_text(self.best.get(name, math.nan)) for name in self.figures}
        figures = [f"{name} has not improved on {best}" for name, best in bests.items()]
        return f"{', and '.join(figures)} for {counted(epochs, 'epoch')}"
