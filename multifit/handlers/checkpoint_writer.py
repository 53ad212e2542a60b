"""Write checkpoints of a running fit, delete old ones, and log what a user should know about them."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from ..checkpoints import CheckpointStore
from ..protocols import MultiEstimator
from .monitor import Monitor

_INEXACT = (
    "checkpoint %s is outside of any schedule: a run resumed from it is correct, but not bit for bit the "
    "same as without the stop, because MXNet's random generator cannot be saved"
)


class CheckpointWriter:
    """Writes checkpoints to a store; a disk error is logged once, and the training continues.

    `monitor` watches the figures whose best checkpoints are kept.
    """

    def __init__(self, store: CheckpointStore, monitor: Monitor) -> None:
        self.store, self.monitor = store, monitor
        self._write_error, self._delete_error = _ErrorOnce(), _ErrorOnce()
        self._inexact_logged = False

    def begin_run(self) -> None:
        """Forget what was logged for an earlier fit; raise OSError if the folder can never be written.

        Otherwise, the first checkpoint would fail, perhaps hours later, and the training would go on without
        checkpoints.
        """
        self._inexact_logged = False
        folder = self.store.folder
        nearest = next((each for each in (folder, *folder.parents) if each.exists()), folder)
        if not nearest.is_dir() or not os.access(nearest, os.W_OK):
            why = "cannot be written" if nearest.is_dir() else "is not a folder"
            raise OSError(
                f"no checkpoint can be written to {folder}, as {nearest} {why}; give another folder"
            )

    def write(self, estimator: MultiEstimator, complete: bool, exact: bool) -> Path | None:
        """Write a checkpoint, then delete those that need not be kept; return its path.

        Returns None if the disk refused it. `complete` says whether the epoch and so its figures are
        complete; `exact` says whether a run that is resumed from the checkpoint is bit for bit the same. With
        several ranks, all call this; the first one writes, and the others wait for it.
        """
        estimator.collect_checkpoint()
        path = self._write(estimator, complete, exact) if estimator.world.first else None
        written = bool(estimator.world.meet("a checkpoint", float(path is not None))[0, 0])
        return path or (self.store.folder if written else None)

    def _write(self, estimator: MultiEstimator, complete: bool, exact: bool) -> Path | None:
        state = estimator.state
        name = f"epoch-{state.epoch + 1:04d}-step-{state.step:08d}"
        facts = {
            "epoch": state.epoch + 1,
            "step": state.step,
            "batch": state.batch + 1,
            "complete": complete,
            "exact": exact,
            "values": self.monitor.finite_values(estimator) if complete else {},
        }
        try:
            path = self.store.write(name, estimator.write_checkpoint, facts)
        except Exception as error:
            if not _is_disk_error(error):
                raise
            what = f"checkpoint {self.store.folder / name} could not be written"
            self._write_error.report(estimator.logger, what, error)
            return None
        self._write_error.over(estimator.logger, f"checkpoints are written again: {path}")
        self._delete_old(estimator)
        return path

    def log_inexact(self, estimator: MultiEstimator, path: Path) -> None:
        """Log, once in a fit, that a resumed run would not be bit for bit the same."""
        if not self._inexact_logged:
            self._inexact_logged = True
            estimator.logger.info(_INEXACT, path)

    def warn_of_later(self, estimator: MultiEstimator) -> None:
        """Log a warning if the folder has intact checkpoints of later steps than the run's."""
        step = estimator.state.step
        latest = self.store.latest_step(after=step)
        if latest:
            estimator.logger.warning(
                "%s holds checkpoints of another run, or of a later part of this one, up to step %d, and "
                "this run is at step %d: this run's checkpoints will count as newer; resume from there, or "
                "give another folder",
                self.store.folder,
                latest,
                step,
            )

    def _delete_old(self, estimator: MultiEstimator) -> None:
        folder = self.store.folder
        try:
            self.store.delete_old(self.monitor.directions)
        except OSError as error:
            what = f"old checkpoints in {folder} could not be deleted"
            self._delete_error.report(estimator.logger, what, error)
        else:
            self._delete_error.over(estimator.logger, f"old checkpoints are deleted again: {folder}")


class _ErrorOnce:
    """Remembers the last error of something that is attempted repeatedly."""

    def __init__(self) -> None:
        self._last: tuple[type[Exception], str] | None = None

    def report(self, logger: logging.Logger, what: str, error: Exception) -> None:
        """Log that `what` failed, unless the last attempt failed in the same way.

        The error's path is left out of the message: it differs from attempt to attempt.
        """
        reason = getattr(error, "strerror", None) or str(error).rpartition(": ")[2]
        if (type(error), reason) != self._last:
            self._last = type(error), reason
            logger.error("%s: %s; training continues, and files written earlier are kept", what, reason)

    def over(self, logger: logging.Logger, what: str) -> None:
        """Log `what` as a warning if the last attempt failed; call it when an attempt succeeds."""
        if self._last is not None:
            self._last = None
            logger.warning("%s", what)


def _is_disk_error(error: Exception) -> bool:
    # MXNet writes its files itself, and raises the same class for a full disk and for an operation that
    # failed long before. This package must not import mxnet, so the class is recognised by name.
    from_mxnet = any(base.__name__ == "MXNetError" for base in type(error).__mro__)
    return isinstance(error, OSError) or (from_mxnet and "local_filesys" in str(error))
