"""Save checkpoints during a fit, and delete old ones."""

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from ..checkpoints import CheckpointStore, checkpoints_folder
from ..utils.arguments import Count, FromZero, Mode, PathLike, Seed, Valid, checked
from ..utils.locks import locked
from ..utils.protocols import MultiEstimator
from .handler import Handler, Priority
from .monitor import Monitor, Monitored
from .triggers import Every

_Schedule = Annotated[
    Every, Valid('Every(n, "batch") without a handler', lambda every: every.handler is None)
]
_INEXACT = (
    "checkpoint %s is outside of any schedule: a run resumed from it is correct, but not bit for bit the "
    "same as without the stop, because MXNet's random generator cannot be saved"
)
_LATER = (
    "%s holds checkpoints of another run, or of a later part of this one, up to step %d, and this run is at "
    "step %d: this run's checkpoints will count as newer; resume from there, or give another folder"
)
_OTHER_SCHEDULE = (
    "the run was started with every=%s and is resumed with every=%r: the resumed run is correct, but not bit "
    "for bit the same as without the stop, because the generators are seeded at other places"
)


class CheckpointHandler(Handler):
    """Saves checkpoints on a schedule, when a figure improves, and when the fit is asked to stop.

    A checkpoint is a folder such as ``epoch-0003-step-00000120``, named by its epoch, counted from 1, and the
    number of batches trained before it. It is written completely or not at all. A run resumed from a
    scheduled checkpoint ends bit for bit as it would have without the stop. MXNet's random generator cannot
    be saved, so a run with a schedule seeds its generators from ``state.seed`` at the start of every epoch,
    and MXNet's after every checkpoint scheduled in batches, whether it is resumed or not.

    Its ``net.params``, which Gluon reads by ``load_parameters``, or ``net.pt``, for ``torch.load``, holds
    what evaluations use: with WeightAveraging, the averages. A run that is resumed continues from the
    parameters that were trained.

    If the fit is asked to stop within an epoch, a checkpoint is saved there; the epoch's figures are
    incomplete and not compared. If the disk is full or lost, this is logged once, the training continues, and
    older checkpoints stay. Checkpoints are ordered by when they were written, even if several runs wrote them
    to one folder. Two runs cannot write there at the same time: a fit locks the run's folder, and raises
    ValueError while another process has locked it.

    Parameters
    ----------
    folder : str or path
        The run's folder. Checkpoints are saved in its subfolder ``checkpoints``, or in the folder itself if
        that is its name.
    every : int or Every, optional
        The schedule: a number of epochs, or ``Every(100, "batch")``. None: no schedule.
    monitor : str, sequence of str or callable, optional
        A figure such as ``"val_loss"``: a checkpoint is saved after each epoch in which it is the best of
        this fit so far. With several figures, one of them must be the best. A function is called with the
        epoch's figures by name, and returns a number.
    mode : {"min", "max"}, optional
        Whether lower or higher values of `monitor` are better. Defaults to what the estimator knows about the
        figure; required for a function.
    keep_last : int
        How many of the last checkpoints to keep, at least 1.
    keep_best : int
        How many checkpoints with the best values of each monitored figure to keep in addition.
    seed : int, optional
        The seed of a run that has a schedule but no seed yet. None: drawn from NumPy's generator.

    Raises
    ------
    ValueError
        An argument is not valid.
    """

    priority = Priority.CHECKPOINT

    @checked
    def __init__(
        self,
        folder: PathLike,
        every: Count | _Schedule | None = None,
        monitor: Monitored | None = None,
        mode: Mode | None = None,
        keep_last: Count = 2,
        keep_best: FromZero = 1,
        seed: Seed | None = None,
    ) -> None:
        self.folder = checkpoints_folder(Path(folder))
        self.every = Every(every, "epoch") if isinstance(every, int) else every
        self.monitor, self.mode, self.seed = monitor, mode, seed
        self._monitor = Monitor(type(self).__name__, [] if monitor is None else monitor, mode)
        self._store = CheckpointStore(self.folder, keep_last, keep_best)
        self._disk_error = ""  # of the last checkpoint, if any
        self._saved_every: str | None = None  # the resumed checkpoint's schedule, if it differs
        self._batches: int | None = None  # in a whole epoch, if known
        self._saved_step: int | None = None  # of the last checkpoint that was due after a batch
        self._started = False

    def around_fit(self, estimator: MultiEstimator) -> AbstractContextManager[None]:
        """Lock the run's folder; raises ValueError if another run writes there."""
        if not estimator.world.first:
            return nullcontext()
        return locked(self.folder.parent, estimator.logger.warning)

    def train_begin(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Reset the comparison; raise OSError if no checkpoint can ever be written.

        Otherwise, the first checkpoint would fail, perhaps hours later.
        """
        self._monitor.begin(estimator)
        self._saved_step = self._saved_every = None
        self._started = False
        if not estimator.world.first:
            return
        nearest = next(each for each in (self.folder, *self.folder.absolute().parents) if each.exists())
        if not nearest.is_dir() or not os.access(nearest, os.W_OK):
            why = "cannot be written" if nearest.is_dir() else "is not a folder"
            raise OSError(
                f"no checkpoint can be written to {self.folder}, as {nearest} {why}; give another folder"
            )
        self._store.begin_run()

    def epoch_begin(self, estimator: MultiEstimator, batches: int | None = None, **arguments: Any) -> None:
        """Seed the generators if there is a schedule; the run's first epoch chooses the seed."""
        self._batches = batches
        if not self._started:
            self._started = True
            step, latest = estimator.state.step, self._store.latest_step()
            if estimator.world.first and latest > step:
                estimator.logger.warning(_LATER, self.folder, latest, step)
            if self._saved_every is not None:
                estimator.logger.warning(_OTHER_SCHEDULE, self._saved_every, self.every)
        if self.every is not None:
            if estimator.state.seed is None:  # a run that is resumed may have been started without a schedule
                estimator.state.seed = int(np.random.randint(2**31 - 1)) if self.seed is None else self.seed
            estimator.reseed_epoch()

    def batch_end(self, estimator: MultiEstimator, **_: Any) -> None:
        """Save a checkpoint if one is due."""
        if self._is_due(estimator, "batch", "batch_end"):
            if self._save(estimator, complete=False, exact=True) is not None:
                self._saved_step = estimator.state.step
            estimator.reseed()  # also if the checkpoint could not be written

    def after_last_batch(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Save a checkpoint where the fit was asked to stop, unless one was due there."""
        if self._saved_step == estimator.state.step:
            return
        name = self._save(estimator, complete=False, exact=False)
        # After the last batch of an epoch, the checkpoint of the epoch's end follows.
        within = estimator.state.batch + 1 != self._batches
        if name is not None and within and not estimator.saves_generators:
            estimator.logger.info(_INEXACT, self.folder / name)

    def epoch_end(self, estimator: MultiEstimator, complete: bool = True, **arguments: Any) -> None:
        """Save a checkpoint if one is due, the figure improved, or the fit is asked to stop.

        An incomplete epoch gets no checkpoint here: other handlers have counted the epoch by now, and a
        resumed run would end it again. `after_last_batch` saved one before they counted it.
        """
        if complete and (
            self._monitor.improved(self._monitor.finite_values(estimator))
            or estimator.state.stopped
            or self._is_due(estimator, "epoch", "epoch_end")
        ):
            self._save(estimator, complete=True, exact=self.every is not None)

    def state_dict(self) -> dict[str, Any]:
        """Return the best values so far and the schedule."""
        return {"best": dict(self._monitor.best), "every": repr(self.every)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._monitor.best = dict(state["best"])
        self._saved_every = None if state["every"] == repr(self.every) else state["every"]

    def _is_due(self, estimator: MultiEstimator, unit: str, event: str) -> bool:
        return self.every is not None and self.every.unit == unit and self.every.due(estimator.state, event)

    def _save(self, estimator: MultiEstimator, complete: bool, exact: bool) -> str | None:
        """Write a checkpoint, then delete those that need not be kept; return its name.

        Returns None if the disk refused it. `complete` says whether the epoch and so its figures are
        complete; `exact` says whether a run that is resumed from the checkpoint is bit for bit the same. With
        several ranks, all call this; the first one writes, and the others wait for it.
        """
        state, world = estimator.state, estimator.world
        name = f"epoch-{state.epoch + 1:04d}-step-{state.step:08d}"
        facts = {
            "epoch": state.epoch + 1,
            "step": state.step,
            "batch": state.batch + 1,
            "complete": complete,
            "exact": exact or estimator.saves_generators,
            "values": self._monitor.finite_values(estimator) if complete else {},
            "directions": dict(self._monitor.directions),
        }
        estimator.collect_checkpoint()
        written = self._write(estimator, name, facts) if world.first else False
        return name if world.from_first(written) else None

    def _write(self, estimator: MultiEstimator, name: str, facts: Mapping[str, Any]) -> bool:
        """Write a checkpoint and delete old ones; return whether it was written.

        An error of the disk is logged, unless the last one was the same.
        """
        written, reason = False, ""
        try:
            self._store.write(name, estimator.write_checkpoint, facts)
            written = True
            self._store.delete_old(self._monitor.directions)
        except OSError as error:
            reason = error.strerror or str(error)
            if reason != self._disk_error:
                what = f"old checkpoints in {self.folder}" if written else f"checkpoint {self.folder / name}"
                verb = "deleted" if written else "written"
                message = "%s could not be %s: %s; training continues, and files written earlier are kept"
                estimator.logger.error(message, what, verb, reason)
        else:
            if self._disk_error:
                estimator.logger.warning("checkpoints are written again: %s", self.folder / name)
        self._disk_error = reason
        return written
