"""A run that goes on: what its folder says it was begun with is what it goes on with."""

from __future__ import annotations

import argparse

from ..taskfile import UsageError
from ..triggers import Every
from .record import NAME, read_record
from .run import Run

__all__ = ["ResumedRun"]


class ResumedRun(Run):
    """One task file with the settings and the seed of the run in its output folder, where there is one yet.

    Parameters
    ----------
    options : argparse.Namespace
        What ``multifit train`` reads; settings, epochs and a seed given there come before those of the run.

    Raises
    ------
    UsageError
        As `Run`, or the folder holds the run of another file, or one whose record cannot be read.
    """

    @property
    def every(self) -> Every | None:
        """The schedule of checkpoints that the run was begun with."""
        kept = self._record.get("checkpoint_every")
        return Every(*kept) if kept else None

    @property
    def epochs(self) -> int:
        """How long to train: what the command line says, else what the run was begun with."""
        if self._epochs is None and "epochs" not in self.task.settings and "epochs" in self._record:
            return int(self._record["epochs"])
        return super().epochs

    def _settle(self, options: argparse.Namespace) -> None:
        folder = self.output_of(options)
        self._record = read_record(folder) if (folder / NAME).exists() else {}
        if self._record:
            trained = str(self._record.get("file", self.task.path)).replace("\\", "/").rpartition("/")[2]
            if trained != self.task.path.name:
                raise UsageError(f"{folder} is a run of {trained}, not of {self.task.path.name}")
            self.task.restore(self._record["settings"])
        super()._settle(options)

    def _default_precision(self) -> str:
        precision: str = self._record.get("precision", super()._default_precision())
        return precision

    def _default_seed(self) -> int:
        seed: int = self._record["seed"] if self._record else super()._default_seed()
        return seed
