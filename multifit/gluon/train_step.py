"""The training step, whose first batch is trained on by what its check has computed."""

from typing import Any

from .. import engines
from .check.first_batch import run_batch
from .data.batch import Batch
from .step.result import StepResult


class TrainStep(engines.TrainStep):
    """Trains on one batch; a stage whose first batch was not checked yet checks it."""

    def first(self, checked: Any) -> StepResult:
        """Train on the first batch, whose forward pass, checks and metrics are done already."""
        self.learn(checked)
        return checked

    def run(self, batch: Batch) -> StepResult:
        """Run net, losses and device metrics; also checks a first batch that was not checked yet."""
        with self._timer("forward"):
            self._trainers.check_frozen()
            return run_batch(self._stage, batch, self._state)
