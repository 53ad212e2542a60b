"""The part of the estimator that handlers can use."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from ..distributed import World
from ..history import History
from ..plan import Plan
from ..protocols import Array, Parameter, Trainer
from ..spec import TaskSpec
from ..state import RunState


class EstimatorProtocol(Protocol):
    """The estimator as handlers see it; handlers never import it."""

    max_epoch: int | None
    max_batch: int | None

    @property
    def world(self) -> World:
        """The processes that train together."""

    @property
    def spec(self) -> TaskSpec:
        """The declarations of outputs, labels, losses and metrics."""

    @property
    def state(self) -> RunState:
        """The counters of the run."""

    @property
    def history(self) -> History:
        """The figures of the running fit."""

    @property
    def plan(self) -> Plan | None:
        """What the last check established."""

    @property
    def batch_axis(self) -> int:
        """The axis of the samples."""

    @property
    def logger(self) -> logging.Logger:
        """The logger "multifit"."""

    def figures(self, stage: str = "train", quick: bool = False) -> dict[str, float]:
        """Return the running figures of "train" or "evaluate"; waits for the engine.

        If `quick`, figures may be left out that take long to compute within a pass.
        """

    def direction(self, figure: str) -> str | None:
        """Return "min" or "max", whichever is better for this figure; None if that is not known."""

    def learning_rates(self) -> dict[str, float]:
        """Return the current rates as ``lr`` or ``lr_<trainer>``, without waiting for the engine."""

    def evaluate(self, data: Any, event_handlers: Any = None, batch_axis: int = 0) -> dict[str, float]:
        """Measure on `data`; in a running fit the figures are recorded in the history as ``val_…``."""

    def collect_checkpoint(self) -> None:
        """Gather each rank's own state; all ranks must call this before the first one writes."""

    def write_checkpoint(self, folder: Path) -> None:
        """Write the state of the whole run into an existing, empty folder."""

    def reseed(self) -> None:
        """Seed MXNet's generator from the run's seed and the current step."""

    def reseed_epoch(self) -> None:
        """Seed all generators from the run's seed and the current epoch."""

    def gradients(self) -> dict[str, dict[str, list[Array]]]:
        """Return the gradients not yet used by an update, by trainer and parameter: one array per device."""

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """The parameters by structural name."""

    def evaluated_parameters(self) -> Mapping[str, Array]:
        """Return the values that evaluations use in place of parameters, such as averages, by name."""

    @property
    def trainers(self) -> Mapping[str, Trainer]:
        """The trainers by name."""
