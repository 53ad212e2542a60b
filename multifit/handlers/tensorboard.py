"""Write a run for TensorBoard."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, Optional

from ..arguments import Count, PathLike, checked
from ..errors import reason, shown
from ..events import Handler, Priority
from ..protocols import Array, MultiEstimator, Numbers
from ..stages import TRAIN, split_figure
from ..triggers import Every
from .event_file import EventFile


class TensorBoardHandler(Handler):
    """Writes figures for TensorBoard and, on request, weights and pictures.

    At the end of each epoch, all figures of the history that were measured are written as ``train/…``,
    ``val/…``, ``lr`` or ``lr/<trainer>``, with the epoch (counted from 1) as the step. The plan is written as
    a text. A second fit, or a resumed run, goes on in the same folder; TensorBoard then discards what earlier
    runs wrote there beyond the point at which this one begins. If the disk is full or lost, one warning is
    logged, and the training goes on without events.

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
            import tensorboardX  # noqa: F401
        except ImportError as error:
            raise ImportError("TensorBoardHandler needs tensorboardX: pip install tensorboardX") from error
        self.folder = Path(folder)
        self.weights = weights
        self.pictures = pictures
        self._trigger = None if every is None else Every(every, "batch")
        self._clock = clock
        self._epoch_file: EventFile | None = None
        self._batch_file: EventFile | None = None
        self._failed = False

    def train_begin(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Forget an earlier fit."""
        self._close()
        self._plan_written = self._failed = False

    def epoch_begin(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Open the files, unless they are open; only now is it known where a resumed run continues."""
        if self._epoch_file is not None or self._failed:
            return
        with self._until_it_fails(estimator):
            self._epoch_file = EventFile(self.folder, estimator.state.epoch, self._clock)
            if self._trigger is not None:
                self._batch_file = EventFile(self.folder / "batches", estimator.state.step, self._clock)

    def batch_end(self, estimator: MultiEstimator, **_: Any) -> None:
        """Write the running figures if the batch is the n-th."""
        if self._batch_file is None or self._trigger is None:
            return
        if self._trigger.due(estimator.state, "batch_end"):
            figures = estimator.figures(TRAIN)
            with self._until_it_fails(estimator):
                _write_figures(self._batch_file, figures, estimator.state.step)

    def epoch_end(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Write the epoch's figures, weights and pictures."""
        if self._epoch_file is None:
            return
        pictures = self._drawn_pictures(estimator)  # here, because its errors are not the disk's
        with self._until_it_fails(estimator):
            self._write_epoch(self._epoch_file, estimator, pictures)

    def train_end(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Close the files."""
        self._close()

    def _write_epoch(self, file: EventFile, estimator: MultiEstimator, pictures: Mapping[str, Any]) -> None:
        epoch = estimator.state.epoch + 1
        plan = estimator.plan
        if plan is not None and not self._plan_written:
            self._plan_written = True
            # Markdown shows lines that begin with four spaces as they are.
            text = "".join(f"    {line}\n" for line in str(plan).splitlines())
            file.add_text("plan", text, epoch)
        _write_figures(file, estimator.history.last, epoch)
        for name, values in _histograms(estimator) if self.weights else ():
            file.add_histogram(name, values, epoch)
        for name, picture in pictures.items():
            file.add_picture(name, picture, epoch)
        file.flush()

    @contextmanager
    def _until_it_fails(self, estimator: MultiEstimator) -> Iterator[None]:
        """Log an error of the disk as a warning, and write no more in this fit."""
        try:
            yield
        except OSError as error:
            self._failed = True
            self._close()
            estimator.logger.warning(
                "cannot write events for TensorBoard to %s: %s; training continues without them",
                self.folder,
                reason(error),
            )

    def _drawn_pictures(self, estimator: MultiEstimator) -> Mapping[str, Any]:
        pictures = {} if self.pictures is None else self.pictures(estimator)
        if not isinstance(pictures, Mapping) or not all(hasattr(p, "savefig") for p in pictures.values()):
            raise ValueError(
                f"pictures must return a dict of matplotlib figures by name, not {shown(pictures)}"
            )
        return pictures

    def _close(self) -> None:
        for file in (self._epoch_file, self._batch_file):
            if file is not None:
                file.close()
        self._epoch_file = self._batch_file = None


def _write_figures(file: EventFile, figures: Mapping[str, float], step: int) -> None:
    for name, value in figures.items():
        if not math.isnan(value):
            file.add_figure(_tag(name), value, step)


def _tag(figure: str) -> str:
    """Return ``train/loss`` for ``train_loss``: TensorBoard groups tags by their part before the slash."""
    prefix, name = split_figure(figure)
    if not prefix and name.startswith("lr_"):
        prefix, name = name.split("_", 1)
    return f"{prefix}/{name}" if prefix else figure


def _histograms(estimator: MultiEstimator) -> Iterator[tuple[str, Numbers]]:
    """Yield the finite values of parameters and gradients on the first device."""
    for name, parameter in estimator.parameters.items():
        yield from _finite(f"weights/{name}", parameter.list_data()[0])
        if parameter.grad_req != "null":
            yield from _finite(f"gradients/{name}", parameter.list_grad()[0])


def _finite(name: str, array: Array) -> Iterator[tuple[str, Numbers]]:
    values = array.asnumpy().astype("float64").ravel()
    values = values[abs(values) < math.inf]
    if values.size:
        yield name, values
