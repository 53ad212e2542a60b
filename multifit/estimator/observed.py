"""What handlers, and whoever else looks on, read of an estimator."""

from __future__ import annotations

from typing import Any, Mapping

from ..errors import names, suggest
from ..gluon.engine import Engine
from ..gluon.facade import FigureMetric, single_trainer

__all__ = ["Observed"]

STAGES = {"train": "train", "val": "evaluate"}  # by the prefix of their figures
PREFIXES = {stage: prefix for prefix, stage in STAGES.items()}


class Observed:
    """The reading half of an estimator: figures, learning rates, trainers."""

    _engine: Engine

    def figures(self, stage: str = "train") -> dict[str, float]:
        """Return the running figures of a stage with their prefix; this waits for the engine.

        Parameters
        ----------
        stage : {"train", "evaluate"}
            Whose figures.

        Raises
        ------
        ValueError
            There is no such stage.
        """
        if stage not in PREFIXES:
            near = suggest(stage, PREFIXES)
            raise ValueError(f'there is no stage "{stage}"{near}; valid are {names(PREFIXES)}')
        own = self._engine.stages[stage].figures()
        return {f"{PREFIXES[stage]}_{name}": value for name, value in own.items()}

    def direction(self, figure: str) -> str | None:
        """Return whether a figure is better "min" or "max"; None where it is not known."""
        prefix, _, name = figure.partition("_")
        return self._engine.direction(STAGES[prefix], name) if prefix in STAGES else None

    def learning_rates(self) -> dict[str, float]:
        """Return the learning rates: ``lr``, or ``lr_<trainer>`` where there are several."""
        return self._engine.learning_rates()

    def gradients(self) -> dict[str, dict[str, list[Any]]]:
        """Return the gradients of the last batch by trainer and parameter: a list of arrays, one per device.

        Parameters that the batch did not reach are left out. Changed in place within ``change_gradients``,
        they are what the trainers use.
        """
        return self._engine.gradients()

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The parameters of net and losses by structural name, such as ``body.0.weight``."""
        return self._engine.parameters

    @property
    def trainers(self) -> Mapping[str, Any]:
        """The trainers by name.

        Each is a ``gluon.Trainer`` whose `learning_rate`, `weight_decay`, `momentum` and `betas` can be read
        and set at any time, also while a schedule runs.

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
