"""Show how far an epoch is."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any, Callable, TextIO

import tqdm.auto
import tqdm.std

from ..events import EstimatorProtocol, Priority
from .wording import epoch_text, figures_text

__all__ = ["ProgressBar"]


class ProgressBar:
    """A bar for each epoch and one for each evaluation, with the running figures.

    Reading figures waits for the device, so this is done at most once in `refresh` seconds over all bars; in
    between the bars only count. They vanish when they are done: what stays is for `LoggingHandler`.

    Parameters
    ----------
    stream : text stream, optional
        Where to draw; None: `sys.stderr` as it is when the first bar begins. A notebook shows its own widget.
    refresh : float
        Seconds between two readings of the figures.
    clock : callable
        Returns seconds.
    enabled : bool, optional
        Whether to draw at all; None: where the stream is a terminal, or in a notebook.
    """

    priority = Priority.PROGRESS

    def __init__(
        self,
        stream: TextIO | None = None,
        refresh: float = 0.5,
        clock: Callable[[], float] = time.monotonic,
        enabled: bool | None = None,
    ) -> None:
        self._stream = stream
        self._refresh = refresh
        self._clock = clock
        self._enabled = enabled
        self._read_at = clock()
        self._first = 0
        self._bars: dict[str, Any] = {}

    def train_begin(self, estimator: EstimatorProtocol, **facts: Any) -> None:
        """Begin to count anew."""
        self._first = estimator.state.epoch

    def epoch_begin(self, estimator: EstimatorProtocol, batches: int | None = None, **facts: Any) -> None:
        """Open the epoch's bar; without a known number of batches it only counts."""
        self._open("train", epoch_text(estimator, self._first), batches)

    def batch_end(self, estimator: EstimatorProtocol, **_: Any) -> None:
        """Move the epoch's bar."""
        self._advance("train", estimator)

    def epoch_end(self, estimator: EstimatorProtocol, **facts: Any) -> None:
        """Close the epoch's bar."""
        self._close("train")

    def train_end(self, estimator: EstimatorProtocol, **facts: Any) -> None:
        """Close what is open."""
        self._close("train", "evaluate")

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch with which this fit began."""
        return {"first": self._first}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set what :meth:`state_dict` returned."""
        self._first = state["first"]

    def evaluate_begin(self, estimator: EstimatorProtocol, batches: int | None = None, **facts: Any) -> None:
        """Open the evaluation's bar, in an epoch below the epoch's."""
        self._open("evaluate", "evaluate", batches)

    def evaluate_batch_end(self, estimator: EstimatorProtocol, **_: Any) -> None:
        """Move the evaluation's bar."""
        self._advance("evaluate", estimator)

    def evaluate_end(self, estimator: EstimatorProtocol, **facts: Any) -> None:
        """Close the evaluation's bar."""
        self._close("evaluate")

    def _open(self, stage: str, title: str, batches: int | None) -> None:
        self._close(stage)
        stream = self._stream or sys.stderr
        if _is_watched(stream) if self._enabled is None else self._enabled:
            self._bars[stage] = tqdm.auto.tqdm(
                desc=title, total=batches, unit=" batches", leave=False, file=stream, dynamic_ncols=True
            )

    def _advance(self, stage: str, estimator: EstimatorProtocol) -> None:
        if stage not in self._bars:
            return
        bar = self._bars[stage]
        bar.update(1)
        if self._clock() - self._read_at >= self._refresh:
            bar.set_postfix_str(figures_text(estimator.figures(stage)))
            self._read_at = self._clock()  # after the reading, which may itself have taken long

    def _close(self, *stages: str) -> None:
        for stage in stages:
            if stage in self._bars:
                self._bars.pop(stage).close()


def _is_watched(stream: TextIO) -> bool:
    # tqdm has found out, when it was imported, whether this is a notebook; there no stream is a terminal.
    return stream.isatty() or not issubclass(tqdm.std.tqdm, tqdm.auto.notebook_tqdm)
