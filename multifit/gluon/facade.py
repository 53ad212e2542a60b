"""What handlers written for Gluon's Estimator expect: one trainer, and metrics that are EvalMetrics."""

from __future__ import annotations

import math
import os
import tempfile
from typing import Any, Callable, Mapping
from zipfile import ZipFile

from ..files import atomic_path
from .compat import mx

__all__ = ["FigureMetric", "single_trainer"]

_GLUON_PREFIXES = {"train": "training", "val": "validation"}


class FigureMetric(mx.metric.EvalMetric):
    """A figure as an EvalMetric: reads it from the estimator, and is neither updated nor reset by others.

    Its `name` is as Gluon's Estimator names its metrics, ``training accuracy``, for Gluon's handlers look at
    that; `get` returns the figure's own.

    Parameters
    ----------
    prefix : {"train", "val"}
        The figure's stage.
    name : str
        The figure's name without prefix, such as ``accuracy``.
    read : callable
        Returns all figures of the stage by their whole name, such as ``train_accuracy``.
    """

    def __init__(self, prefix: str, name: str, read: Callable[[], Mapping[str, float]]) -> None:
        self.figure, self._read = f"{prefix}_{name}", read
        super().__init__(f"{_GLUON_PREFIXES[prefix]} {name}")

    def update(self, labels: Any, preds: Any) -> None:
        """Do nothing: the estimator measures."""

    def reset(self) -> None:
        """Do nothing: the estimator begins each epoch anew."""

    reset_local = reset

    def get(self) -> tuple[Any, Any]:
        """Return name and value; lists of them for a metric of several figures."""
        figures = self._read()
        several = {name: value for name, value in figures.items() if name.startswith(self.figure + ".")}
        if several and self.figure not in figures:
            return list(several), list(several.values())
        return self.figure, figures.get(self.figure, math.nan)

    get_global = get


class _SeveralTrainers:
    """Several trainers as one: the first one's attributes, and the states of all in one file."""

    def __init__(self, trainers: Mapping[str, Any]) -> None:
        self._trainers = dict(trainers)

    def __getattr__(self, name: str) -> Any:
        return getattr(next(iter(self._trainers.values())), name)

    def save_states(self, fname: str) -> None:
        """Save every trainer's states to a zip archive with a file for each."""
        with (
            atomic_path(fname) as path,
            tempfile.TemporaryDirectory() as folder,
            ZipFile(path, "w") as archive,
        ):
            for i, (name, trainer) in enumerate(self._trainers.items()):
                own = os.path.join(folder, str(i))  # a trainer's name need not be a file's
                trainer.save_states(own)
                archive.write(own, name)

    def load_states(self, fname: str) -> None:
        """Load what :meth:`save_states` saved."""
        with tempfile.TemporaryDirectory() as folder, ZipFile(fname) as archive:
            for i, (name, trainer) in enumerate(self._trainers.items()):
                own = os.path.join(folder, str(i))
                with open(own, "wb") as file:
                    file.write(archive.read(name))
                trainer.load_states(own)


def single_trainer(trainers: Mapping[str, Any]) -> Any:
    """Return the one trainer, or a stand-in for several."""
    return next(iter(trainers.values())) if len(trainers) == 1 else _SeveralTrainers(trainers)
