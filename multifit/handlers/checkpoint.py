"""Write checkpoints in the course of a fit."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..arguments import whole_number
from ..checkpoints import CheckpointStore, checkpoints_folder
from ..errors import names, shown, suggest
from ..events import EstimatorProtocol, Priority
from ..triggers import Every
from .error_once import ErrorOnce

__all__ = ["CheckpointHandler"]

_WORST = {"min": math.inf, "max": -math.inf}
_INEXACT = (
    "checkpoint %s is outside any schedule: a run that is resumed from it goes on correctly, but not bit for "
    "bit as without the stop, because MXNet's random generator cannot be saved"
)


class CheckpointHandler:
    """Writes checkpoints by a schedule, where a figure improves, and when the fit is asked to stop.

    A checkpoint is a folder such as ``epoch-0003-step-00000120``: its epoch, counted from 1, and the batches
    trained before it. It is there whole or not at all. A run that is resumed from one of a schedule's ends
    bit for bit where it would have ended without the stop: since MXNet's random generator cannot be saved, a
    run with a schedule seeds its generators anew from ``state.seed`` at every epoch's begin, and MXNet's
    after every checkpoint of a schedule in batches, whether it is resumed or not.

    When the fit is asked to stop in the middle of an epoch, a checkpoint is written there, and the epoch is
    not taken for one that is over: its figures are not compared. A disk that is full or lost is logged, once;
    the training goes on, and what was written before stays. The order of the checkpoints is that in which
    they were written, also over several runs in one folder.

    Parameters
    ----------
    folder : str or path
        The run's folder; the checkpoints are in its ``checkpoints``. A folder of just that name is taken as
        it is.
    every : int or Every, optional
        The schedule: so many epochs, or ``Every(100, "batch")``; None: there is none.
    monitor : str, optional
        A figure such as ``"val_loss"``: whenever it is the best of this fit at an epoch's end.
    mode : {"min", "max"}, optional
        Which direction of `monitor` is better; None: what the estimator knows of the figure.
    keep_last : int
        How many of the last checkpoints to keep, at least 1.
    keep_best : int
        How many to keep, besides, of those with the best values of `monitor`.
    seed : int, optional
        For a run with a schedule that has no seed yet; None: drawn from NumPy's generator.

    Raises
    ------
    ValueError
        An argument is not valid.
    """

    priority = Priority.CHECKPOINT

    def __init__(
        self,
        folder: str | os.PathLike[str],
        every: int | Every | None = None,
        monitor: str | None = None,
        mode: str | None = None,
        keep_last: int = 2,
        keep_best: int = 1,
        seed: int | None = None,
    ) -> None:
        self.folder = checkpoints_folder(Path(folder))
        self.every = _schedule(every)
        self.monitor, self.mode = _monitored(monitor, mode)
        self.seed = None if seed is None else whole_number("CheckpointHandler: seed", seed, least=0)
        self._store = CheckpointStore(
            self.folder,
            whole_number("CheckpointHandler: keep_last", keep_last),
            whole_number("CheckpointHandler: keep_best", keep_best, least=0),
        )
        self._direction: str | None = None
        self._best: float | None = None
        self._other: str | None = None  # the schedule with which the run was begun, if it was another
        self._batches: int | None = None  # of the whole epoch, where that is known
        self._cut_short = False  # whether the stop was seen at a batch's end
        self._written: int | None = None  # the step of the last checkpoint within an epoch
        self._begun = self._told_inexact = False
        self._writing, self._removing = ErrorOnce(), ErrorOnce()

    def train_begin(self, estimator: EstimatorProtocol, **facts: Any) -> None:
        """Begin to compare anew, and see to it that a run with a schedule has a seed."""
        self._direction = None
        if self.monitor is not None:
            # Where nobody knows it, the estimator refuses the monitor with the first batch.
            self._direction = self.mode or estimator.direction(self.monitor) or "min"
        self._best = self._written = self._other = None
        self._begun = self._told_inexact = False
        if self.every is not None and estimator.state.seed is None:
            drawn = int(np.random.randint(2**31 - 1)) if self.seed is None else self.seed
            estimator.state.seed = drawn

    def epoch_begin(self, estimator: EstimatorProtocol, batches: int | None = None, **facts: Any) -> None:
        """Seed the generators anew, where there is a schedule."""
        self._batches, self._cut_short = batches, False
        if not self._begun:
            self._begun = True
            self._warn_of_later(estimator)
            self._warn_of_other(estimator)
        if self.every is not None:
            estimator.reseed_epoch()

    def batch_end(self, estimator: EstimatorProtocol, **_: Any) -> None:
        """Write a checkpoint if one is due, or the fit is asked to stop."""
        due = self._due(estimator, "batch", "batch_end")
        if due or estimator.state.stopped:
            self._cut_short = estimator.state.stopped
            self._write(estimator, complete=False, exact=due)
        if due:  # also if it could not be written: the run is the same with a full disk
            estimator.reseed()

    def epoch_end(self, estimator: EstimatorProtocol, **facts: Any) -> None:
        """Write a checkpoint if one is due, the figure improved, or the fit is asked to stop."""
        cut = self._is_cut(estimator)
        if cut or estimator.state.interrupted:
            # Without its validation, which is left out after an interrupt, an epoch is not over: the run that
            # goes on makes up for it.
            if self._written != estimator.state.step:  # a later handler asked for the stop, or writing failed
                self._write(estimator, complete=False, exact=self.every is not None and not cut)
            return
        improved = self._improved(estimator)
        if improved or estimator.state.stopped or self._due(estimator, "epoch", "epoch_end"):
            self._write(estimator, complete=True, exact=self.every is not None)

    def state_dict(self) -> dict[str, Any]:
        """Return the best value so far, None before the first, and the schedule."""
        return {"best": self._best, "every": repr(self.every)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self._best = state["best"]
        other = state.get("every", repr(self.every))
        self._other = None if other == repr(self.every) else other

    # ---- when ----------------------------------------------------------------------------------------------

    def _due(self, estimator: EstimatorProtocol, unit: str, moment: str) -> bool:
        every = self.every
        return every is not None and every.unit == unit and every.due(estimator.state, moment)

    def _is_cut(self, estimator: EstimatorProtocol) -> bool:
        """Whether the fit was asked to stop before the epoch was over."""
        if self._batches is None:
            return self._cut_short
        return estimator.state.stopped and estimator.state.batch + 1 < self._batches

    def _improved(self, estimator: EstimatorProtocol) -> bool:
        value = self._value(estimator)
        if value is None or self._direction is None:
            return False
        best = _WORST[self._direction] if self._best is None else self._best
        if not (value < best if self._direction == "min" else value > best):
            return False
        self._best = value
        return True

    def _value(self, estimator: EstimatorProtocol) -> float | None:
        value = math.nan if self.monitor is None else estimator.history.last.get(self.monitor, math.nan)
        return value if math.isfinite(value) else None

    # ---- what ----------------------------------------------------------------------------------------------

    def _write(self, estimator: EstimatorProtocol, complete: bool, exact: bool) -> None:
        state = estimator.state
        name = f"epoch-{state.epoch + 1:04d}-step-{state.step:08d}"
        facts = {
            "epoch": state.epoch + 1,
            "step": state.step,
            "batch": state.batch + 1,
            "complete": complete,
            "exact": exact,
            "monitor": self.monitor,
            "value": self._value(estimator) if complete else None,
        }
        try:
            path = self._store.write(name, estimator.write_checkpoint, facts)
        except Exception as error:
            if not _is_the_disk(error):
                raise
            what = f"checkpoint {self.folder / name} could not be written"
            self._writing.report(estimator.logger, what, error)
            return
        self._written = None if complete else state.step
        self._writing.over(estimator.logger, f"checkpoints are written again: {path}")
        # At the last batch of an epoch that of the epoch's end follows, and who ended as planned knows.
        if not (exact or complete or state.batch + 1 == self._batches):
            self._tell_inexact(estimator, path)
        self._trim(estimator)

    def _trim(self, estimator: EstimatorProtocol) -> None:
        try:
            self._store.delete_old(self.monitor, self._direction)
        except OSError as error:
            what = f"old checkpoints in {self.folder} could not be deleted"
            self._removing.report(estimator.logger, what, error)
        else:
            self._removing.over(estimator.logger, f"old checkpoints are deleted again: {self.folder}")

    def _tell_inexact(self, estimator: EstimatorProtocol, path: Path) -> None:
        if not self._told_inexact:
            self._told_inexact = True
            estimator.logger.info(_INEXACT, path)

    def _warn_of_other(self, estimator: EstimatorProtocol) -> None:
        if self._other is not None:
            estimator.logger.warning(
                "the run was begun with every=%s, and goes on with every=%r: correct, but not bit for bit as "
                "without the stop, because the generators are seeded anew at other places",
                self._other,
                self.every,
            )

    def _warn_of_later(self, estimator: EstimatorProtocol) -> None:
        furthest, here = self._store.latest_step(), estimator.state.step
        if furthest > here:
            estimator.logger.warning(
                "%s holds checkpoints of another run, or a later part of this one, up to step %d, and this "
                "run is at step %d: its own will count as newer; resume from there, or give another folder",
                self.folder,
                furthest,
                here,
            )


def _schedule(every: Any) -> Every | None:
    if every is None:
        return None
    if isinstance(every, Every):
        if every.handler is not None:
            raise ValueError(f"CheckpointHandler: every is {every!r}, which has a handler; give it none here")
        return every
    return Every(whole_number('CheckpointHandler: every (else Every(n, "batch"))', every), "epoch")


def _monitored(monitor: Any, mode: Any) -> tuple[str | None, str | None]:
    if monitor is not None and not isinstance(monitor, str):
        raise ValueError(
            f'CheckpointHandler: monitor is {shown(monitor)}; valid is a name such as "val_loss"'
        )
    if mode is not None and mode not in _WORST:
        raise ValueError(
            f'CheckpointHandler: mode is "{mode}"{suggest(mode, _WORST)}; valid are {names(_WORST)}'
        )
    return monitor, mode


def _is_the_disk(error: Exception) -> bool:
    # MXNet writes files by itself, and says with an error of its own that the disk is full; so it does for
    # all else, such as an operation that failed long before. This layer does not import mxnet: by name.
    from_mxnet = any(base.__name__ == "MXNetError" for base in type(error).__mro__)
    return isinstance(error, OSError) or (from_mxnet and "local_filesys" in str(error))
