"""Write a run for TensorBoard."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Callable, Optional

import numpy as np

from ..arguments import Count, PathLike, checked
from ..errors import shown
from ..events import EstimatorProtocol, Priority
from ..protocols import Array
from ..stages import split_figure
from ..triggers import Every


class TensorBoardHandler:
    """Writes figures for TensorBoard and, on request, weights and pictures.

    At the end of each epoch, all figures of the history that were measured are written as ``train/…``,
    ``val/…``, ``lr`` or ``lr/<trainer>``, with the epoch (counted from 1) as the step. The plan is written as
    a text. A second fit, or a resumed run, goes on in the same folder; TensorBoard then discards what the
    interrupted run wrote beyond the point from which it was resumed.

    Parameters
    ----------
    folder : str or path
        The folder to write to.
    every : int, optional
        Also write the running figures after every n-th batch, into the folder ``batches`` within `folder`.
        The step is the number of batches trained. This waits for the device.
    weights : bool
        Also write histograms of all parameters (``weights/…``) and their gradients (``gradients/…``).
    pictures : callable, optional
        Called with the estimator at the end of each epoch. Returns a dict of matplotlib figures by name.
    clock : callable
        Returns the time in seconds since 1970.

    Raises
    ------
    ImportError
        tensorboardX is not installed.
    ValueError
        `every` is not a whole number of at least 1.
    """

    priority = Priority.LOGGING
    first_rank_only = True  # where several processes train together

    @checked
    def __init__(
        self,
        folder: PathLike,
        every: Optional[Count] = None,
        weights: bool = False,
        pictures: Optional[Callable[[Any], Mapping[str, Any]]] = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError as error:
            raise ImportError(
                'TensorBoardHandler needs tensorboardX: pip install "multifit[tensorboard]"'
            ) from error
        self.folder = Path(folder)
        self.weights = self.copies_parameters = weights
        self.pictures = pictures
        self._trigger = None if every is None else Every(every, "batch")
        self._writer_class = SummaryWriter
        self._clock = clock
        self._epoch_writer: Any = None
        self._batch_writer: Any = None

    def train_begin(self, estimator: EstimatorProtocol, **facts: Any) -> None:
        """Forget an earlier fit."""
        self._close()
        self._plan_written = False

    def epoch_begin(self, estimator: EstimatorProtocol, **facts: Any) -> None:
        """Open the files, unless they are open; only now is it certain where a resumed run goes on."""
        if self._epoch_writer is None:
            self._epoch_writer = self._writer(self.folder, estimator.state.epoch)
            if self._trigger is not None:
                self._batch_writer = self._writer(self.folder / "batches", estimator.state.step)

    def batch_end(self, estimator: EstimatorProtocol, **_: Any) -> None:
        """Write the running figures if the batch is the n-th."""
        if self._trigger is not None and self._trigger.due(estimator.state, "batch_end"):
            self._write_figures(self._batch_writer, estimator.figures("train"), estimator.state.step)

    def epoch_end(self, estimator: EstimatorProtocol, **facts: Any) -> None:
        """Write the epoch's figures, weights and pictures."""
        epoch = estimator.state.epoch + 1
        plan = getattr(estimator, "plan", None)
        if plan is not None and not self._plan_written:
            self._plan_written = True
            # Markdown shows lines that begin with four spaces as they are.
            text = "".join(f"    {line}\n" for line in str(plan).splitlines())
            self._epoch_writer.add_text("plan", text, epoch, walltime=self._clock())
        self._write_figures(self._epoch_writer, estimator.history.last, epoch)
        for name, values in _histograms(estimator) if self.weights else ():
            self._epoch_writer.add_histogram(name, values, epoch, walltime=self._clock())
        for name, picture in self._drawn_pictures(estimator):
            self._epoch_writer.add_figure(name, picture, epoch, close=False, walltime=self._clock())
        self._epoch_writer.flush()  # by itself, the writer does so every two minutes

    def train_end(self, estimator: EstimatorProtocol, **facts: Any) -> None:
        """Close the files."""
        self._close()

    def _writer(self, folder: Path, done: int) -> Any:
        # TensorBoard discards what an interrupted run has written from this step on.
        purge = {"purge_step": done + 1} if done else {}
        # The writer names its file by the second, and would overwrite another of the same second.
        nth = len(list(folder.glob("events.out.tfevents.*")))
        return self._writer_class(logdir=str(folder), filename_suffix=f".{nth}", **purge)

    def _write_figures(self, writer: Any, figures: Mapping[str, float], step: int) -> None:
        for name, value in figures.items():
            if not math.isnan(value):
                writer.add_scalar(_tag(name), value, step, walltime=self._clock())

    def _drawn_pictures(self, estimator: EstimatorProtocol) -> Iterator[tuple[str, Any]]:
        pictures = {} if self.pictures is None else self.pictures(estimator)
        if not isinstance(pictures, Mapping) or not all(hasattr(p, "savefig") for p in pictures.values()):
            raise ValueError(
                f"pictures must return a dict of matplotlib figures by name, not {shown(pictures)}"
            )
        yield from pictures.items()

    def _close(self) -> None:
        for writer in (self._epoch_writer, self._batch_writer):
            if writer is not None:
                writer.close()
        self._epoch_writer = self._batch_writer = None


def _tag(figure: str) -> str:
    """Return ``train/loss`` for ``train_loss``: TensorBoard groups tags by their part before the slash."""
    prefix, name = split_figure(figure)
    if not prefix and name.startswith("lr_"):
        prefix, name = name.split("_", 1)
    return f"{prefix}/{name}" if prefix else figure


def _histograms(estimator: EstimatorProtocol) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Yield the finite values of parameters and gradients on the first device."""
    for name, parameter in estimator.parameters.items():
        yield from _finite(f"weights/{name}", parameter.list_data()[0])
        if parameter.grad_req != "null":
            yield from _finite(f"gradients/{name}", parameter.list_grad()[0])


def _finite(name: str, array: Array) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    values = array.asnumpy().astype("float64").ravel()
    values = values[abs(values) < math.inf]
    if values.size:
        yield name, values
