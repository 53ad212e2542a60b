"""Write a run for TensorBoard."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..utils.arguments import Count, PathLike, checked
from ..utils.protocols import MultiEstimator
from ..utils.stages import split_figure
from .log_to import RUNNING, LogTo


class TensorBoardHandler(LogTo):
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
        super().__init__(_Events(Path(folder), every or 1, SummaryWriter), every, None, pictures)
        self.folder, self.weights = Path(folder), weights

    def epoch_end(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Write the epoch's figures, pictures and weights."""
        super().epoch_end(estimator)
        if self.weights:
            arrays = {f"weights/{name}": values for name, values in estimator.values().items()}
            arrays |= {f"gradients/{name}": each for name, each in estimator.values(gradients=True).items()}
            self._log(estimator, "log_weights", arrays, estimator.state.epoch + 1)
        self._log(estimator, "flush")


class _Events:
    """The files: a writer for epochs, and one for the running figures of batches, in a folder within."""

    def __init__(self, folder: Path, every: int, make_writer: Callable[..., Any]) -> None:
        self.name = f"TensorBoardHandler({folder})"
        self.folder, self.every, self._make_writer = folder, every, make_writer
        self._writers: dict[str, Any] = {}
        self._plan = ""

    def log_settings(self, settings: Mapping[str, Any]) -> None:
        self._plan = settings.get("plan", "")

    def log_figures(self, figures: Mapping[str, float], step: int, epoch: int | None) -> None:
        if epoch is None:
            writer = self._writer(RUNNING, step - self.every + 1, step)
        else:
            writer = self._writer("", epoch, step)
            if self._plan:
                # Markdown shows lines that begin with four spaces as they are.
                writer.add_text("plan", "".join(f"    {line}\n" for line in self._plan.splitlines()), epoch)
                self._plan = ""
        for name, value in figures.items():
            writer.add_scalar(_tag(name.removeprefix(RUNNING)), value, step if epoch is None else epoch)

    def log_picture(self, name: str, figure: Any, step: int, epoch: int) -> None:
        self._writers[""].add_figure(name, figure, epoch, close=False)

    def log_weights(self, arrays: Mapping[str, Any], epoch: int) -> None:
        for tag, array in arrays.items():
            values = array.astype("float64").ravel()
            values = values[abs(values) < math.inf]
            if values.size:
                self._writers[""].add_histogram(tag, values, epoch)

    def flush(self) -> None:
        for writer in self._writers.values():
            writer.flush()  # raises in this thread what the disk refuses

    def close(self) -> None:
        writers, self._writers = self._writers.values(), {}
        for writer in writers:
            try:
                writer.close()
            except OSError:
                # its queue, which nobody empties any more, would keep the process from ending
                writer.file_writer.event_writer._event_queue.cancel_join_thread()

    def _writer(self, part: str, first: int, step: int) -> Any:
        """Return a writer; a new one lets TensorBoard discard what earlier runs wrote from `first` on."""
        if part not in self._writers:
            # An unlimited queue: otherwise, SummaryWriter waits forever if an error of the disk ends its
            # thread. The suffix keeps a second fit from writing to the file of the first, in one second.
            self._writers[part] = self._make_writer(
                str(self.folder / part), purge_step=first, max_queue=0, filename_suffix=f".{step}"
            )
        return self._writers[part]


def _tag(figure: str) -> str:
    """Return ``train/loss`` for ``train_loss``: TensorBoard groups tags by their part before the slash."""
    prefix, name = split_figure(figure)
    if not prefix and name.startswith("lr_"):
        prefix, name = name.split("_", 1)
    return f"{prefix}/{name}" if prefix else figure
