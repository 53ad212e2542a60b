"""Tell the log how a run goes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Callable

from ..arguments import whole_number
from ..events import EstimatorProtocol, Priority
from ..triggers import Every
from .wording import epoch_text, figures_text, of_text, report_text

__all__ = ["LoggingHandler"]

_WIDTH = 9  # of a figure; so lines stand under each other


class LoggingHandler:
    """Logs one line per epoch, or one per stage where there are many figures.

    It tells the epoch's seconds (validation included), the training samples per second and all figures. Lines
    go to ``estimator.logger`` at level INFO. An evaluation outside of a fit is logged too.

    Parameters
    ----------
    log_interval : "epoch" or int
        A number n adds a line after each n-th batch of an epoch. It reads the figures, which waits for the
        device.
    clock : callable
        Returns seconds.

    Raises
    ------
    ValueError
        `log_interval` is neither "epoch" nor a whole number of at least 1.
    """

    priority = Priority.LOGGING

    def __init__(
        self, log_interval: str | int = "epoch", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._trigger: Every | None = None
        if log_interval != "epoch":
            period = whole_number('LoggingHandler: log_interval, if not "epoch",', log_interval)
            self._trigger = Every(period, "batch")
        self._clock = clock
        self._epoch: _Stretch | None = None

    def train_begin(self, estimator: EstimatorProtocol, **facts: Any) -> None:
        """Log how far this fit goes, and the learning rates."""
        self._first, self._epochs = estimator.state.epoch, 0
        self._run = _Stretch(self._clock(), estimator.state.samples)
        limits = {"epochs": estimator.max_epoch, "batches": estimator.max_batch}
        goal = " or ".join(f"{limit} {unit}" for unit, limit in limits.items() if limit is not None)
        rates = figures_text(estimator.learning_rates())
        estimator.logger.info("training for %s: %s", goal or "as long as nobody stops it", rates)

    def epoch_begin(self, estimator: EstimatorProtocol, batches: int | None = None, **facts: Any) -> None:
        """Begin to measure the epoch."""
        self._batches = batches
        if not self._epochs:  # a run that goes on brought the samples of before
            self._run.samples = estimator.state.samples
        self._epochs += 1
        self._epoch = _Stretch(self._clock(), estimator.state.samples)
        self._interval = _Stretch(self._clock(), estimator.state.samples)

    def batch_end(self, estimator: EstimatorProtocol, **_: Any) -> None:
        """Log the running figures where the interval is due."""
        state = estimator.state
        if self._trigger is None or not self._trigger.fires(state.batch + 1):
            return
        # The figures first: once they are read, all that was issued before is done, and the clock tells the
        # truth.
        figures = estimator.figures("train")
        place = f"{epoch_text(estimator, self._first)}  batch {of_text(state.batch + 1, self._batches)}"
        rate = self._interval.rate(self._clock(), state.samples)
        estimator.logger.info("%s", report_text(f"{place}  {rate:8.0f} samples/s", figures, _WIDTH))
        self._interval = _Stretch(self._clock(), state.samples)

    def epoch_end(self, estimator: EstimatorProtocol, **facts: Any) -> None:
        """Log the epoch's figures from the history, where other handlers put them: nothing is read twice."""
        assert self._epoch is not None  # epoch_begin came before
        now = self._clock()
        seconds, rate = now - self._epoch.began, self._epoch.rate(now, estimator.state.samples)
        head = f"{epoch_text(estimator, self._first)}  {seconds:8.2f} s  {rate:8.0f} samples/s"
        estimator.logger.info("%s", report_text(head, estimator.history.last, _WIDTH))
        self._epoch = None

    def train_end(self, estimator: EstimatorProtocol, **facts: Any) -> None:
        """Log what was done, and why it ended."""
        samples = estimator.state.samples - self._run.samples if self._epochs else 0
        seconds = self._clock() - self._run.began
        reason = estimator.state.stop_reason or "the data ended"
        estimator.logger.info(
            "trained %d epochs, %d samples, in %.2f s; stopped: %s",
            self._epochs,
            samples,
            seconds,
            reason,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch with which this fit began."""
        return {"first": self._first}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set what :meth:`state_dict` returned."""
        self._first = state["first"]

    def evaluate_begin(self, estimator: EstimatorProtocol, **facts: Any) -> None:
        """Begin to measure the evaluation."""
        self._evaluation = self._clock()

    def evaluate_end(self, estimator: EstimatorProtocol, figures: Mapping[str, float], **facts: Any) -> None:
        """Log the figures.

        In an epoch they are part of its line, and only the time is taken out of its rate.
        """
        seconds = self._clock() - self._evaluation
        if self._epoch is None:
            estimator.logger.info("evaluated in %.2f s: %s", seconds, figures_text(figures))
            return
        self._epoch.paused += seconds
        self._interval.paused += seconds


@dataclass
class _Stretch:
    """A stretch of the training: when it began, the samples trained before, the seconds it was paused."""

    began: float
    samples: int
    paused: float = 0.0

    def rate(self, now: float, samples: int) -> float:
        return (samples - self.samples) / max(now - self.began - self.paused, 1e-9)
