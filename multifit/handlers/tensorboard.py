"""Show a run in TensorBoard."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Callable

from ..arguments import whole_number
from ..events import EstimatorProtocol, Priority
from ..triggers import Every

__all__ = ["TensorBoardHandler"]


class TensorBoardHandler:
    """Writes events for TensorBoard: figures and, where they are asked for, weights and pictures.

    At the end of each epoch, with the epoch (counted from 1) as the step: every figure of the history, as
    ``train/…``, ``val/…``, ``lr`` or ``lr/<trainer>``; what was not measured is left out. The plan is a text.
    A second fit, or a resumed run, goes on in the same folder, and TensorBoard forgets what an interrupted
    run wrote beyond the point from which it was resumed.

    Parameters
    ----------
    folder : str or path
        Where the events go.
    every : int, optional
        Write the running figures too after each so many batches, with the number of batches trained as the
        step, into the folder ``batches`` within `folder`. This waits for the device.
    weights : bool
        Write histograms of all parameters (``weights/…``) and their gradients (``gradients/…``) too.
    pictures : callable, optional
        Called with the estimator at the end of each epoch; returns a dict of matplotlib figures by name.
    clock : callable
        Returns seconds since 1970.

    Raises
    ------
    ImportError
        tensorboardX is not installed.
    ValueError
        `every` is no whole number of at least 1.
    """

    priority = Priority.LOGGING

    def __init__(
        self,
        folder: str | os.PathLike[str],
        every: int | None = None,
        weights: bool = False,
        pictures: Callable[[Any], Mapping[str, Any]] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError as error:
            raise ImportError(
                'TensorBoardHandler needs tensorboardX: pip install "multifit[tensorboard]"'
            ) from error
        self.folder = Path(folder)
        self.weights = weights
        self.pictures = pictures
        period = None if every is None else whole_number("TensorBoardHandler: every", every)
        self._trigger = None if period is None else Every(period, "batch")
        self._make = SummaryWriter
        self._clock = clock
        self._epochs: Any = None
        self._batches: Any = None

    def train_begin(self, estimator: EstimatorProtocol, **facts: Any) -> None:
        """Forget which files an earlier fit wrote to, and that the plan was told."""
        self._close()
        self._told = False

    def epoch_begin(self, estimator: EstimatorProtocol, **facts: Any) -> None:
        """Open the files where none are; only now it is certain where the run goes on."""
        if self._epochs is None:
            self._epochs = self._writer(self.folder, estimator.state.epoch)
            if self._trigger is not None:
                self._batches = self._writer(self.folder / "batches", estimator.state.step)

    def batch_end(self, estimator: EstimatorProtocol, **_: Any) -> None:
        """Write the running figures where they are due."""
        if self._trigger is not None and self._trigger.due(estimator.state, "batch_end"):
            self._write_figures(self._batches, estimator.figures("train"), estimator.state.step)

    def epoch_end(self, estimator: EstimatorProtocol, **facts: Any) -> None:
        """Write what the epoch gave."""
        epoch = estimator.state.epoch + 1
        plan = getattr(estimator, "plan", None)
        if plan is not None and not self._told:
            self._told = True
            text = "".join(f"    {line}\n" for line in str(plan).splitlines())  # Markdown for: as it is
            self._epochs.add_text("plan", text, epoch, walltime=self._clock())
        self._write_figures(self._epochs, estimator.history.last, epoch)
        for name, values in _histograms(estimator) if self.weights else ():
            self._epochs.add_histogram(name, values, epoch, walltime=self._clock())
        for name, picture in self._drawn(estimator):
            self._epochs.add_figure(name, picture, epoch, close=False, walltime=self._clock())
        self._epochs.flush()  # who looks on does not wait for the writer's own two minutes

    def train_end(self, estimator: EstimatorProtocol, **facts: Any) -> None:
        """Close the files."""
        self._close()

    def _writer(self, folder: Path, done: int) -> Any:
        # tells TensorBoard to forget events of an interrupted run from here on
        purge = {"purge_step": done + 1} if done else {}
        # the writer names its file by the second, and would overwrite one that is not older
        nth = len(list(folder.glob("events.out.tfevents.*")))
        return self._make(logdir=str(folder), filename_suffix=f".{nth}", **purge)

    def _write_figures(self, writer: Any, figures: Mapping[str, float], step: int) -> None:
        for name, value in figures.items():
            if not math.isnan(value):
                writer.add_scalar(_tag(name), value, step, walltime=self._clock())

    def _drawn(self, estimator: EstimatorProtocol) -> Iterator[tuple[str, Any]]:
        drawn = {} if self.pictures is None else self.pictures(estimator)
        if not isinstance(drawn, Mapping) or not all(hasattr(each, "savefig") for each in drawn.values()):
            raise ValueError(f"pictures must return a dict of matplotlib figures by name, not {drawn!r:.80}")
        yield from drawn.items()

    def _close(self) -> None:
        for writer in (self._epochs, self._batches):
            if writer is not None:
                writer.close()
        self._epochs = self._batches = None


def _tag(figure: str) -> str:
    """Return ``train/loss`` for ``train_loss``: TensorBoard groups by what stands before the slash."""
    stage, _, rest = figure.partition("_")
    return f"{stage}/{rest}" if stage in ("train", "val", "lr") and rest else figure


def _histograms(estimator: Any) -> Iterator[tuple[str, Any]]:
    """Yield the values of parameters and gradients on the first device; the finite ones, which fit a bin."""
    for name, parameter in estimator.parameters.items():
        yield from _finite(f"weights/{name}", parameter.list_data()[0])
        if parameter.grad_req != "null":
            yield from _finite(f"gradients/{name}", parameter.list_grad()[0])


def _finite(name: str, array: Any) -> Iterator[tuple[str, Any]]:
    values = array.asnumpy().astype("float64").ravel()
    values = values[abs(values) < math.inf]
    if values.size:
        yield name, values
