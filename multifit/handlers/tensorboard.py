"""Write a run for TensorBoard."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..arguments import Count, PathLike, checked
from ..errors import reason, shown
from ..events import Handler, Priority
from ..protocols import Array, MultiEstimator
from ..stages import TRAIN, split_figure
from ..triggers import Every


class TensorBoardHandler(Handler):
    """Writes figures for TensorBoard and, on request, weights and pictures, by tensorboardX.

    At the end of each epoch, all figures of the history that were measured are written as ``train/…``,
    ``val/…``, ``lr`` or ``lr/<trainer>``, with the epoch (counted from 1) as the step. The plan is written as
    a text. A second fit, or a resumed run, goes on in the same folder; TensorBoard then discards what earlier
    runs wrote there beyond the point at which this one begins. If the disk is full at the end of an epoch,
    one warning is logged, and the training goes on without events.

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
        every: Count | None = None,
        weights: bool = False,
        pictures: Callable[[Any], Mapping[str, Any]] | None = None,
    ) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError as error:
            raise ImportError("TensorBoardHandler needs tensorboardX: pip install tensorboardX") from error
        self.folder = Path(folder)
        self.weights = weights
        self.pictures = pictures
        self._trigger = None if every is None else Every(every, "batch")
        self._make_writer = SummaryWriter
        self._epochs: Any = None  # the writers
        self._batches: Any = None
        self._opened = False

    def train_begin(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Forget an earlier fit."""
        self._close()
        self._opened = self._plan_written = False

    def epoch_begin(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Open the files, unless they are open; only now is it known where a resumed run continues."""
        if self._opened:
            return
        self._opened, state = True, estimator.state
        with self._until_it_fails(estimator):
            self._epochs = self._writer(self.folder, state.epoch + 1, state.step)
            if self._trigger is not None:
                self._batches = self._writer(self.folder / "batches", state.step + 1, state.step)

    def batch_end(self, estimator: MultiEstimator, **_: Any) -> None:
        """Write the running figures if the batch is the n-th."""
        if self._trigger is None or self._batches is None:
            return
        if self._trigger.due(estimator.state, "batch_end"):
            _write_figures(self._batches, estimator.figures(TRAIN), estimator.state.step)

    def epoch_end(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Write the epoch's figures, weights and pictures."""
        if self._epochs is None:
            return
        pictures = {} if self.pictures is None else self.pictures(estimator)
        if not isinstance(pictures, Mapping) or not all(hasattr(p, "savefig") for p in pictures.values()):
            raise ValueError(f"pictures must return a dict of matplotlib figures, not {shown(pictures)}")
        with self._until_it_fails(estimator):
            epoch = estimator.state.epoch + 1
            if estimator.plan is not None and not self._plan_written:
                self._plan_written = True
                # Markdown shows lines that begin with four spaces as they are.
                text = "".join(f"    {line}\n" for line in str(estimator.plan).splitlines())
                self._epochs.add_text("plan", text, epoch)
            _write_figures(self._epochs, estimator.history.last, epoch)
            for name, array in _arrays(estimator) if self.weights else ():
                values = array.asnumpy().astype("float64").ravel()
                values = values[abs(values) < math.inf]
                if values.size:
                    self._epochs.add_histogram(name, values, epoch)
            for name, picture in pictures.items():
                self._epochs.add_figure(name, picture, epoch, close=False)
            for writer in filter(None, (self._epochs, self._batches)):
                writer.flush()  # raises in this thread what the disk refuses

    def train_end(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Close the files."""
        self._close()

    def _writer(self, folder: Path, first: int, step: int) -> Any:
        # An unlimited queue: otherwise, SummaryWriter waits forever if an error of the disk ends its thread.
        # The suffix keeps a second fit from writing to the file of the first, in the same second.
        return self._make_writer(str(folder), purge_step=first, max_queue=0, filename_suffix=f".{step}")

    @contextmanager
    def _until_it_fails(self, estimator: MultiEstimator) -> Iterator[None]:
        """Log an error of the disk as a warning, and write no more in this fit."""
        try:
            yield
        except OSError as error:
            for writer in filter(None, (self._epochs, self._batches)):
                # its queue, which nobody empties any more, would keep the process from ending
                writer.file_writer.event_writer._event_queue.cancel_join_thread()
            self._close()
            estimator.logger.warning(
                "cannot write events for TensorBoard to %s: %s; training continues without them",
                self.folder,
                reason(error),
            )

    def _close(self) -> None:
        for writer in filter(None, (self._epochs, self._batches)):
            with suppress(OSError):
                writer.close()
        self._epochs = self._batches = None


def _write_figures(writer: Any, figures: Mapping[str, float], step: int) -> None:
    for name, value in figures.items():
        if not math.isnan(value):
            writer.add_scalar(_tag(name), value, step)


def _tag(figure: str) -> str:
    """Return ``train/loss`` for ``train_loss``: TensorBoard groups tags by their part before the slash."""
    prefix, name = split_figure(figure)
    if not prefix and name.startswith("lr_"):
        prefix, name = name.split("_", 1)
    return f"{prefix}/{name}" if prefix else figure


def _arrays(estimator: MultiEstimator) -> Iterator[tuple[str, Array]]:
    """Yield parameters and gradients on the first device."""
    for name, parameter in estimator.parameters.items():
        yield f"weights/{name}", parameter.list_data()[0]
        if parameter.grad_req != "null":
            yield f"gradients/{name}", parameter.list_grad()[0]
