"""What handlers written for Gluon's Estimator expect: one trainer, and metrics that are EvalMetrics."""

from __future__ import annotations

import math
from typing import Any, Callable, Mapping

from .compat import mx

__all__ = ["FigureMetric", "single_trainer"]


class FigureMetric(mx.metric.EvalMetric):
    """A figure as an EvalMetric: reads it from the estimator, and is neither updated nor reset by others.

    Parameters
    ----------
    name : str
        The figure's name, such as ``train_accuracy``.
    read : callable
        Returns all figures of the stage by name.
    """

    def __init__(self, name: str, read: Callable[[], Mapping[str, float]]) -> None:
        self._read = read
        super().__init__(name)

    def update(self, labels: Any, preds: Any) -> None:
        """Do nothing: the estimator measures."""

    def reset(self) -> None:
        """Do nothing: the estimator begins each epoch anew."""

    reset_local = reset

    def get(self) -> tuple[Any, Any]:
        """Return name and value; lists of them for a metric of several figures."""
        figures = self._read()
        if self.name in figures or not figures:
            return self.name, figures.get(self.name, math.nan)
        several = {name: value for name, value in figures.items() if name.startswith(self.name + ".")}
        return (list(several), list(several.values())) if several else (self.name, math.nan)

    get_global = get


class _SeveralTrainers:
    """Several trainers as one: the first one's attributes, and states saved and loaded for all."""

    def __init__(self, trainers: Mapping[str, Any]) -> None:
        self._trainers = dict(trainers)

    def __getattr__(self, name: str) -> Any:
        return getattr(next(iter(self._trainers.values())), name)

    def save_states(self, fname: str) -> None:
        """Save each trainer's states to ``<fname>.<trainer>``."""
        for name, trainer in self._trainers.items():
            trainer.save_states(f"{fname}.{name}")

    def load_states(self, fname: str) -> None:
        """Load what :meth:`save_states` saved."""
        for name, trainer in self._trainers.items():
            trainer.load_states(f"{fname}.{name}")


def single_trainer(trainers: Mapping[str, Any]) -> Any:
    """Return the one trainer, or a stand-in for several."""
    return next(iter(trainers.values())) if len(trainers) == 1 else _SeveralTrainers(trainers)
