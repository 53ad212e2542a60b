"""Runs an estimator's batches with MXNet; see :class:`multifit.engines.Runner`."""

from __future__ import annotations

from typing import Any, Callable

from ... import engines
from ...balance import Sum
from ...protocols import Array
from ..balance.arrays import MXNetArrays
from ..data.devices import can_compute as has
from ..engine import Engine
from ..execution.result import StepResult
from ..gradient_meter import GradientMeter
from ..precision.precisions import precision_of
from .evaluation import evaluate_batch, predict
from .train_step import TrainStep

__all__ = ["Runner", "arrays", "has", "host", "precision_of"]


def host(context: Any) -> Any:
    """Return the context of the net's own parameters: that of the run."""
    return context


def arrays(context: Any, host: Any) -> MXNetArrays:
    """Return the arrays of a run, whose net is on `host`, as methods of balancing use them."""
    return MXNetArrays(host)


class Runner(engines.Runner):
    """Runs batches where the net's parameters are, so that nothing is ever copied."""

    def __init__(
        self, engine: Engine, context: Any, log_once: Callable[[str], None], compiles: bool | str
    ) -> None:
        if compiles:
            raise ValueError(
                f'compile={compiles!r} needs engine="torch"; engine is "mxnet": leave compile out'
            )
        self._engine = engine

    def train_step(self) -> TrainStep:
        """Return what trains on a batch."""
        return TrainStep(self._engine)

    def evaluate_batch(self, raw: Any) -> StepResult:
        """Measure losses and metrics on a batch."""
        return evaluate_batch(self._engine, raw)

    def predict(self, data: Any, gather: bool) -> dict[str, Any]:
        """Return every output by name."""
        return predict(self._engine, data, gather)

    def gradients(self) -> dict[str, dict[str, list[Array]]]:
        """Return the gradients that no update has used, by trainer and parameter."""
        return self._engine.trainers.gradients()

    def gradient_meter(self, method: Sum) -> GradientMeter:
        """Return what measures the tasks' gradients on batches."""
        return GradientMeter(self._engine, method)
