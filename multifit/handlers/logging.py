"""Log the progress of a run."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Callable, Optional, Union

from ..arguments import Count, Patterns, checked, one_of
from ..errors import counted
from ..events import Handler, Priority
from ..protocols import MultiEstimator
from ..stages import EVALUATE, figure_name, split_figure
from ..tables import UNLIMITED, terminal_width
from ..triggers import Every
from .figure_choice import FigureChoice
from .format import count_text, epoch_text, figure_lines, figures_text, fitting
from .log_file import FULL_TEXT


class LoggingHandler(Handler):
    """Logs each epoch's figures, seconds (with validation) and training samples per second.

    A message has one line, or one line per stage if there are many figures. Its lines fit the terminal (80
    characters without one). By default it shows the objective and one key figure per task, as far as they
    fit; `history.json`, `History.table()` and the log file of :class:`LogFile` have all figures.

    Messages are logged to ``estimator.logger`` at level INFO. An evaluation outside of a fit is logged too.

    Parameters
    ----------
    log_interval : "epoch" or int
        A number n also logs the running figures after every n-th batch of an epoch. This reads the figures,
        which waits for the device.
    clock : callable
        Returns the time in seconds.
    figures : str or iterable of str, optional
        The figures to show: full names such as ``"val_loss"``, or regular expressions that match whole names,
        such as ``"val_.*"``. Further lines are added if they do not fit one. Defaults to the key figures.

    Raises
    ------
    ValueError
        `log_interval` is neither "epoch" nor a whole number of at least 1, or one of `figures` is not a
        regular expression.
    """

    priority = Priority.LOGGING
    first_rank_only = True  # where several processes train together

    @checked
    def __init__(
        self,
        log_interval: Union[Annotated[str, one_of("epoch")], Count] = "epoch",
        clock: Callable[[], float] = time.monotonic,
        figures: Optional[Patterns] = None,
    ) -> None:
        self._trigger = Every(log_interval, "batch") if isinstance(log_interval, int) else None
        self._clock = clock
        self._figures = FigureChoice(figures)
        self._epoch: _Stopwatch | None = None

    def train_begin(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Log the limits of this fit and the learning rates."""
        self._first, self._epochs, self._epoch = estimator.state.epoch, 0, None
        self._run = _Stopwatch(self._clock(), estimator.state.samples)
        limits = ((estimator.max_epoch, "epoch", "epochs"), (estimator.max_batch, "batch", "batches"))
        goal = " or ".join(counted(n, unit, plural) for n, unit, plural in limits if n is not None)
        head = f"training for {goal}" if goal else "training without a limit"
        rates = estimator.learning_rates()
        shown = figures_text(fitting(rates, terminal_width() - len(head) - 2))
        self._log(estimator, f"{head}: {shown}".rstrip(": "), f"{head}: {figures_text(rates)}")

    def epoch_begin(self, estimator: MultiEstimator, batches: int | None = None, **arguments: Any) -> None:
        """Start the epoch's clock."""
        self._batches = batches
        if not self._epochs:  # in a resumed run, the checkpoint has set the number of samples by now
            self._run.samples = estimator.state.samples
        self._epochs += 1
        self._epoch = _Stopwatch(self._clock(), estimator.state.samples)
        self._interval = _Stopwatch(self._clock(), estimator.state.samples)

    def batch_end(self, estimator: MultiEstimator, **_: Any) -> None:
        """Log the running figures if the batch is the n-th."""
        state = estimator.state
        if self._trigger is None or not self._trigger.fires(state.batch + 1):
            return
        # Read the figures before the clock: this waits for all batches issued before.
        figures = estimator.figures()
        place = f"{epoch_text(estimator, self._first)}  batch {count_text(state.batch + 1, self._batches)}"
        rate = self._interval.rate(self._clock(), state.samples)
        self._log_figures(estimator, f"{place}  {rate:8.0f} samples/s", figures)
        self._interval = _Stopwatch(self._clock(), state.samples)

    def epoch_end(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Log the epoch's figures from the history, without reading them a second time."""
        assert self._epoch is not None  # epoch_begin was called before
        now = self._clock()
        seconds, rate = now - self._epoch.began, self._epoch.rate(now, estimator.state.samples)
        head = f"{epoch_text(estimator, self._first)}  {seconds:8.2f} s  {rate:8.0f} samples/s"
        self._log_figures(estimator, head, estimator.history.last)
        self._epoch = None

    def train_end(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Log how long the fit took and why it stopped."""
        warning = self._figures.warning(estimator.history)
        if warning is not None:
            estimator.logger.warning("LoggingHandler: %s", warning)
        total = estimator.state.samples
        samples = total - self._run.samples if self._epochs else 0
        begun_only = self._epoch is not None and self._epoch.samples == total  # its first batch was refused
        seconds = self._clock() - self._run.began
        epochs = counted(self._epochs - begun_only, "epoch")
        done = f"{epochs}, {counted(samples, 'sample')}, in {seconds:.2f} s"
        reason = estimator.state.stop_reason or "the data is exhausted"
        estimator.logger.info("trained %s; stopped: %s", done, reason)

    def state_dict(self) -> dict[str, Any]:
        """Return the index of this fit's first epoch."""
        return {"first": self._first}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._first = state["first"]

    def evaluate_begin(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Start the evaluation's clock."""
        self._evaluation = self._clock()

    def evaluate_end(self, estimator: MultiEstimator, figures: Mapping[str, float], **arguments: Any) -> None:
        """Log the figures of an evaluation outside of a fit.

        Within an epoch, the epoch's message has the figures, and the evaluation's time does not count for the
        epoch's rate.
        """
        seconds = self._clock() - self._evaluation
        if self._epoch is None:
            self._log_evaluation(estimator, f"evaluated in {seconds:.2f} s:", figures)
            return
        self._epoch.paused += seconds
        self._interval.paused += seconds

    def _log_evaluation(self, estimator: MultiEstimator, head: str, figures: Mapping[str, float]) -> None:
        full = {figure_name(EVALUATE, name): value for name, value in figures.items()}
        shown = {
            split_figure(name)[1]: value for name, value in self._figures.of(full, estimator.spec).items()
        }
        if self._figures.patterns is None:
            shown = fitting(shown, terminal_width() - len(head) - 1)
        self._log(estimator, f"{head} {figures_text(shown)}", f"{head} {figures_text(figures)}")

    def _log_figures(self, estimator: MultiEstimator, head: str, figures: Mapping[str, float]) -> None:
        shown = self._figures.of(figures, estimator.spec)
        chosen = self._figures.patterns is not None
        short = figure_lines(head, shown, terminal_width(), wrap=chosen)
        self._log(estimator, short, figure_lines(head, figures, UNLIMITED))

    @staticmethod
    def _log(estimator: MultiEstimator, short: str, full: str) -> None:
        estimator.logger.info("%s", short, extra={FULL_TEXT: full})


@dataclass
class _Stopwatch:
    """The time in seconds and the number of samples since some point of the training."""

    began: float
    samples: int
    paused: float = 0.0  # seconds since then that do not count as training

    def rate(self, now: float, samples: int) -> float:
        """Return the samples per second."""
        return (samples - self.samples) / max(now - self.began - self.paused, 1e-9)
