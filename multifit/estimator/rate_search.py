"""The learning rate range test: the loss while the rate grows, batch by batch, and what it suggests."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Annotated, Any

import numpy as np

from ..engines import Engine
from ..handlers.plots import new_figure
from ..spec.checks.data import one_shot
from ..utils.arguments import Positive, bounds, checked
from ..utils.errors import TrainerError, note_place
from ..utils.protocols import Trainer
from ..utils.stages import TRAIN
from ..utils.tables import table
from ..utils.text import quoted, shown, suggest

MEMORY = 0.9  # of the running mean of losses: the last seven have half of the weight


@dataclass(frozen=True, repr=False)
class RateSearch:
    """What :func:`~multifit.MultiEstimator.find_learning_rate` found.

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
        mean = RunningMean()
        object.__setattr__(self, "smoothed", [mean.add(loss) for loss in self.losses])
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


DIVERGED = 4.0  # times the lowest mean: fastai's limit
TOO_FEW = 10  # fewer batches make no useful mean or curve


@checked
def find_learning_rate(
    engine: Engine,
    data: Any,
    start: Positive,
    end: Positive,
    batches: Annotated[int, bounds(TOO_FEW)],
    trainer: str | None,
) -> RateSearch:
    """Train for some batches with a learning rate that grows from `start` to `end`, and look at the loss.

    L. N. Smith's range test ("Cyclical Learning Rates for Training Neural Networks", 2015), with fastai's
    rules for when to stop and what to suggest. It ends early if the loss diverges. Afterwards, and also after
    an error, net, trainers and random states are as before. `engine` is a fork, with its own figures. Data
    that ends too early is read again. The other arguments and the errors are those of
    :meth:`multifit.MultiEstimator.find_learning_rate`.
    """
    if not start < end:
        raise ValueError(f"find_learning_rate: start is {start} and end is {end}; start must be below end")
    rates = [float(rate) for rate in np.geomspace(start, end, batches)]
    with engine.trial_run(data, "data") as (run, iterator):
        trainers = _select(engine.session.trainers.get(), trainer)
        next(iterator)  # the first batch is in `run`
        rest = iterator if one_shot(data) else chain(iterator, engine.session.readers[TRAIN].repeat(data))
        losses = _train(engine, run.train.batch, rest, rates, trainers)
    return RateSearch(rates[: len(losses)], losses)


def _select(trainers: Mapping[str, Trainer], name: str | None) -> list[Trainer]:
    if name is not None and name not in trainers:
        near, valid = suggest(name, trainers), quoted(trainers)
        raise TrainerError(f"find_learning_rate: there is no trainer {shown(name)}{near}; valid are {valid}")
    selected = {each: trainer for each, trainer in trainers.items() if name in (None, each)}
    for trainer in selected.values():
        trainer.set_learning_rate(trainer.learning_rate)  # an error if its optimizer uses none
    return list(selected.values())


def _train(
    engine: Engine,
    first: Any,
    batches: Iterator[Any],
    rates: Sequence[float],
    trainers: Sequence[Any],
) -> list[float]:
    """Train on a first batch, then on others, with one rate after the other; return the losses."""
    step, losses, raw = engine.train_step(), list[float](), None
    best, mean = math.inf, RunningMean()
    while True:
        try:
            result = step.run(step.split(raw) if losses else first)
        except Exception as error:
            note_place(error, f"finding the learning rate, batch {len(losses) + 1}")
            raise
        loss = result.loss()  # read before the update, so that errors of the forward pass are raised here
        if not math.isfinite(loss):
            break
        losses.append(loss)
        value = mean.add(loss)
        if len(losses) >= TOO_FEW:  # a mean of fewer is mostly chance
            best = min(best, value)
        raw = next(batches, None) if len(losses) < len(rates) else None
        if raw is None or value > DIVERGED * best > 0:
            break
        for trainer in trainers:
            trainer.hold(rates[len(losses) - 1])
        step.learn(result)
        engine.session.state.step += 1  # trainers, weights and methods of balancing depend on it
    if not losses:
        raise ValueError("find_learning_rate: the first batch's loss is not finite; nothing was updated")
    return losses
