"""What handlers, and whoever else looks on, read of an estimator."""

from __future__ import annotations

from typing import Any, Mapping

from ..gluon.engine import Engine
from ..gluon.facade import FigureMetric, single_trainer

__all__ = ["Observed"]

STAGES = {"train": "train", "val": "evaluate"}  # by the prefix of their figures


class Observed:
    """The reading half of an estimator: figures, learning rates, trainers."""

    _engine: Engine

    def figures(self, stage: str = "train") -> dict[str, float]:
        """Return the running figures of a stage with their prefix; this waits for the engine.

        Parameters
        ----------
        stage : {"train", "evaluate"}
            Whose figures.
        """
        prefix = "train" if stage == "train" else "val"
        return {f"{prefix}_{name}": value for name, value in self._engine.stages[stage].figures().items()}

    def direction(self, figure: str) -> str | None:
        """Return whether a figure is better "min" or "max"; None where it is not known."""
        prefix, _, name = figure.partition("_")
        return self._engine.direction(STAGES[prefix], name) if prefix in STAGES else None

    def learning_rates(self) -> dict[str, float]:
        """Return the learning rates: ``lr``, or ``lr_<trainer>`` where there are several."""
        return self._engine.learning_rates()

    @property
    def trainers(self) -> Mapping[str, Any]:
        """The trainers by name.

        Raises
        ------
        TrainerError
            They cannot be built, or do not cover the parameters.
        """
        return self._engine.bound_trainers()

    @property
    def trainer(self) -> Any:
        """The trainer, for handlers that know only one; for several, one that stands for all."""
        return single_trainer(self.trainers)

    @property
    def train_metrics(self) -> list[Any]:
        """The training figures as EvalMetrics: the metrics, then the objective."""
        return self._facades("train")

    @property
    def val_metrics(self) -> list[Any]:
        """The validation figures as EvalMetrics: the metrics, then the objective."""
        return self._facades("val")

    def _facades(self, prefix: str) -> list[Any]:
        stage = STAGES[prefix]
        names = [measure.term.key for measure in self._engine.measures[stage]]
        names += ["loss"] if self._engine.stages[stage].spec.terms else []
        return [FigureMetric(prefix, name, lambda: self.figures(stage)) for name in names]
