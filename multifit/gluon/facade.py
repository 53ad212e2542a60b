"""What handlers written for Gluon's Estimator read: one trainer, and metrics that are EvalMetrics."""

from __future__ import annotations

import math
import os
import tempfile
from typing import Any, Callable, Mapping
from zipfile import ZipFile

from ..files import atomic_path
from ..protocols import Figures, Trainer
from .compat import mx
from .metrics.stage_figures import StageFigures

_GLUON_PREFIXES = {"train": "training", "val": "validation"}


class FigureMetric(mx.metric.EvalMetric):
    """A figure as a read-only EvalMetric.

    Its `name` is the one that Gluon's Estimator would give it, such as ``training accuracy``, because Gluon's
    handlers read that; `get` returns the figure's own name. `prefix` is "train" or "val"; `name` is the
    figure's name without it; `read` returns all figures of the stage by full name.
    """

    def __init__(self, prefix: str, name: str, read: Callable[[], Figures]) -> None:
        self.figure, self._read = f"{prefix}_{name}", read
        super().__init__(f"{_GLUON_PREFIXES[prefix]} {name}")

    def update(self, labels: Any, preds: Any) -> None:
        """Do nothing: the estimator updates its figures."""

    def reset(self) -> None:
        """Do nothing: the estimator resets its figures with each epoch."""

    reset_local = reset

    def get(self) -> tuple[Any, Any]:
        """Return name and value, or a list of each for a metric with several figures."""
        figures = self._read()
        parts = {name: value for name, value in figures.items() if name.startswith(self.figure + ".")}
        if parts and self.figure not in figures:
            return list(parts), list(parts.values())
        return self.figure, figures.get(self.figure, math.nan)

    get_global = get


def figure_metrics(
    prefix: str, figures: StageFigures, read: Callable[[], Mapping[str, float]]
) -> list[FigureMetric]:
    """Return a stage's metrics, then its objective, as EvalMetrics; `read` returns the figures."""
    return [FigureMetric(prefix, key, read) for key in figures.metric_keys()]


class _SeveralTrainers:
    """Several trainers as one, with the attributes of the first; it saves all states to one file."""

    def __init__(self, trainers: Mapping[str, Trainer]) -> None:
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
                path_of_states = os.path.join(folder, str(i))  # a trainer's name may not be valid for a file
                trainer.save_states(path_of_states)
                archive.write(path_of_states, name)

    def load_states(self, fname: str) -> None:
        """Load what :meth:`save_states` saved."""
        with tempfile.TemporaryDirectory() as folder, ZipFile(fname) as archive:
            for i, (name, trainer) in enumerate(self._trainers.items()):
                path_of_states = os.path.join(folder, str(i))
                with open(path_of_states, "wb") as file:
                    file.write(archive.read(name))
                trainer.load_states(path_of_states)


def single_trainer(trainers: Mapping[str, Trainer]) -> Any:
    """Return the one trainer, or a stand-in for several."""
    return next(iter(trainers.values())) if len(trainers) == 1 else _SeveralTrainers(trainers)
