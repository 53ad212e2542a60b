"""Show the progress of an epoch or an evaluation."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from typing import Any, Callable, Optional

import tqdm.auto

from ..arguments import NotNegative, Patterns, TextStream, checked
from ..events import Handler, Priority
from ..output import Output, in_notebook
from ..protocols import MultiEstimator
from ..sampling import TaskBatch
from ..stages import EVALUATE, TRAIN, split_figure
from ..tables import terminal_width
from .figure_choice import FigureChoice
from .format import epoch_text, figures_text, fitting

_BAR = 62  # characters of title, bar, counts and times, beside which the figures are shown


class ProgressBar(Handler):
    """Shows a progress bar for each epoch and each evaluation, with the running figures.

    Reading figures waits for the device. All bars together read them at most once in `refresh` seconds, and
    only count batches in between. With several loaders, the title ends with the name of the loader of the
    current batch. Bars disappear when they are done; `LoggingHandler` logs what should stay.

    Parameters
    ----------
    stream : text stream, optional
        Where to draw. Defaults to `sys.stderr`, as it is when a bar is opened. In a notebook, the bars are
        widgets if ipywidgets is installed, and text otherwise. A stream that breaks never stops a training.
    refresh : float
        Seconds between two readings of the figures.
    clock : callable
        Returns the time in seconds.
    enabled : bool, optional
        Whether to draw at all. By default, bars are drawn in notebooks and in terminals other than
        ``TERM=dumb``.
    figures : str or iterable of str, optional
        The figures to show: full names such as ``"train_loss"``, or regular expressions that match whole
        names, such as ``".*_loss"``. Defaults to the objective and one key figure per task, as far as they
        fit the terminal, without those that are computed from all arrays of the pass so far, such as the
        figures of functions: at each reading, these would take longer.

    Raises
    ------
    ValueError
        One of `figures` is not a valid regular expression.
    """

    priority = Priority.PROGRESS
    first_rank_only = True  # where several processes train together

    @checked
    def __init__(
        self,
        stream: Optional[TextStream] = None,
        refresh: NotNegative = 0.5,
        clock: Callable[[], float] = time.monotonic,
        enabled: Optional[bool] = None,
        figures: Optional[Patterns] = None,
    ) -> None:
        self._stream, self._enabled = stream, enabled
        self._clock, self._refresh = clock, refresh
        self._figures = FigureChoice(figures)
        self._read_at = clock()
        self._first = 0
        self._bars: dict[str, Any] = {}
        self._titles: dict[str, str] = {}

    def train_begin(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Remember the first epoch of this fit."""
        self._first = estimator.state.epoch

    def epoch_begin(self, estimator: MultiEstimator, batches: int | None = None, **arguments: Any) -> None:
        """Open the epoch's bar. If the number of batches is not known, it only counts."""
        self._open(TRAIN, epoch_text(estimator, self._first), batches)

    def batch_end(self, estimator: MultiEstimator, batch: Any = None, **_: Any) -> None:
        """Advance the epoch's bar."""
        self._advance(TRAIN, estimator, batch)

    def epoch_end(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Close the epoch's bar."""
        self._close(TRAIN)

    def train_end(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Close all bars."""
        self._close(*self._bars)

    def state_dict(self) -> dict[str, Any]:
        """Return the index of this fit's first epoch."""
        return {"first": self._first}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._first = state["first"]

    def evaluate_begin(self, estimator: MultiEstimator, batches: int | None = None, **arguments: Any) -> None:
        """Open the evaluation's bar; within an epoch, it is drawn below the epoch's.

        In a notebook without widgets, it takes the place of the epoch's.
        """
        self._open(EVALUATE, EVALUATE, batches)

    def evaluate_batch_end(self, estimator: MultiEstimator, batch: Any = None, **_: Any) -> None:
        """Advance the evaluation's bar."""
        self._advance(EVALUATE, estimator, batch)

    def evaluate_end(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Close the evaluation's bar."""
        self._close(EVALUATE)

    def _open(self, stage: str, title: str, batches: int | None) -> None:
        self._close(stage)
        self._titles[stage] = title
        stream = Output(sys.stderr if self._stream is None else self._stream)
        if not (_is_watched(stream) if self._enabled is None else self._enabled):
            return
        position = None  # below the bars that are open
        if in_notebook():  # where text has a single line that can change; widgets ignore this
            position = 0
            for bar in self._bars.values():
                bar.display("")
        self._bars[stage] = tqdm.auto.tqdm(
            desc=title,
            total=batches,
            unit=" batches",
            leave=False,
            file=stream,
            dynamic_ncols=True,
            position=position,
        )

    def _advance(self, stage: str, estimator: MultiEstimator, batch: Any) -> None:
        if stage not in self._bars:
            return
        bar = self._bars[stage]
        if isinstance(batch, TaskBatch):
            bar.set_description_str(f"{self._titles[stage]}, {batch.name}", refresh=False)
        bar.update(1)
        if self._clock() - self._read_at >= self._refresh:
            quick = self._figures.patterns is None
            bar.set_postfix_str(self._text(estimator.figures(stage, quick), estimator))
            self._read_at = self._clock()  # after reading, which may itself take long

    def _text(self, figures: Mapping[str, float], estimator: MultiEstimator) -> str:
        shown = self._figures.of(figures, estimator.spec)
        # The bar's title says which stage it is.
        short = {split_figure(name)[1]: value for name, value in shown.items()}
        if self._figures.patterns is None:
            first = dict(list(short.items())[:1])
            short = fitting(short, terminal_width() - _BAR) or first
        return figures_text(short)

    def _close(self, *stages: str) -> None:
        for stage in stages:
            if stage in self._bars:
                self._bars.pop(stage).close()


def _is_watched(stream: Output) -> bool:
    # A second bar needs a terminal that moves its cursor, which a dumb one does not.
    return (stream.isatty() and os.environ.get("TERM") != "dumb") or in_notebook()
