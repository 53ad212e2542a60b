"""A curve of losses over learning rates, and which rate it suggests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Sequence

import numpy as np

from ..plots import new_figure
from ..tables import table

MEMORY = 0.9  # of the running mean of losses: the last seven have half of the weight


@dataclass(frozen=True, repr=False)
class RateSearch:
    """What :func:`~multifit.rate_search.finder.find_learning_rate` found.

    Attributes
    ----------
    rates : list of float
        The learning rates, one per batch, each a constant factor above the one before.
    losses : list of float
        The objective of each of these batches. If it diverged, the last value is where it did.
    smoothed : list of float
        The exponentially weighted mean of `losses`.
    suggestion : float or None
        A tenth of the rate at which `smoothed` was lowest; None if it fell no further than by chance. If it
        was still falling at the last rate, search on with a higher `end`.
    """

    rates: list[float]
    losses: list[float]
    smoothed: list[float] = field(init=False)
    suggestion: float | None = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "smoothed", _smoothed(self.losses))
        object.__setattr__(self, "suggestion", _suggestion(self.rates, self.losses, self.smoothed))

    def __repr__(self) -> str:
        suggestion = "none" if self.suggestion is None else f"{self.suggestion:.2g}"
        span = f"{self.rates[0]:.2g} to {self.rates[-1]:.2g}"
        return f"RateSearch({len(self.rates)} batches, rates {span}, suggestion {suggestion})"

    def table(self, rows: int = 12) -> str:
        """Return some of the rates, spread evenly, with their losses as aligned text."""
        chosen = np.unique(np.linspace(0, len(self.rates) - 1, rows).round().astype(int))
        cells = [(f"{self.rates[i]:.2e}", f"{self.losses[i]:.4g}", f"{self.smoothed[i]:.4g}") for i in chosen]
        return table(("rate", "loss", "smoothed"), cells)

    def plot(self) -> Any:
        """Draw the losses over the rates, and the suggestion; raises ImportError without matplotlib."""
        figure = new_figure(6.4, 4.0)
        axes = figure.add_subplot()
        axes.plot(self.rates, self.losses, color="C0", alpha=0.35, linewidth=1, label="loss")
        axes.plot(self.rates, self.smoothed, color="C0", linewidth=2, label="smoothed")
        if self.suggestion is not None:
            text = f"suggestion: {self.suggestion:.2g}"
            axes.axvline(self.suggestion, color="C3", linestyle="--", label=text)
        axes.set_xscale("log")
        low, high = min(self.losses), max(self.losses[: 1 + len(self.losses) // 2])
        margin = 0.05 * (high - low) or 0.1
        axes.set_ylim(low - margin, high + 6 * margin)  # not the cliff at the end
        axes.set_xlabel("learning rate")
        axes.set_ylabel("loss")
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
        return figure


class RunningMean:
    """An exponentially weighted mean, without the bias of its first values."""

    def __init__(self) -> None:
        self._sum = self._weight = 0.0

    def add(self, value: float) -> float:
        """Add a value, and return the mean."""
        self._sum = MEMORY * self._sum + (1 - MEMORY) * value
        self._weight = MEMORY * self._weight + (1 - MEMORY)
        return self._sum / self._weight


def _smoothed(losses: Sequence[float]) -> list[float]:
    mean = RunningMean()
    return [mean.add(loss) for loss in losses]


def _suggestion(rates: Sequence[float], losses: Sequence[float], smoothed: Sequence[float]) -> float | None:
    """Return a tenth of the rate at which the smoothed loss was lowest: fastai's ``minimum``.

    On six nets (digits; without and with BatchNorm; SGD, momentum, Adam) it came within a factor of three of
    the best rate. The rate where the loss falls fastest was up to ten times too high, and that in the middle
    of the longest valley up to ten times too low.
    """
    lowest = int(np.argmin(smoothed))
    if not lowest:
        return None
    until = np.asarray(losses[: lowest + 1])
    # The noise is estimated from differences of neighbours, because the losses themselves fall, and by their
    # median, because the losses jump near the end.
    noise = np.median(np.abs(np.diff(until))) / 0.954  # the standard deviation, if normal
    fall = np.mean(until[: max(3, len(losses) // 4)]) - smoothed[lowest]
    return rates[lowest] / 10 if fall > 2 * noise else None
