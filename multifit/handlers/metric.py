"""Record the training figures."""

import math
from typing import Any

from ..utils.protocols import MultiEstimator
from ..utils.stages import TRAIN
from .handler import Handler, Priority

OBJECTIVE, COVERAGE = "train_loss", "train_coverage_"
DIVERGED = (
    "if the training has diverged, try a lower learning rate, or the trainer's clip_norm; TerminateOnNaN "
    "stops at the first such batch and names it"
)
LACKING = "no sample has a label that a loss takes; see missing= of the LabelSpecs"


class MetricHandler(Handler):
    """Records the training figures and the learning rates in the history at the end of each epoch.

    A warning names the first epoch of a fit in which the objective is NaN or infinite.

    This handler is called before all others, so that they can read the figures from the history: reading them
    from the estimator would wait for the device again.
    """

    priority = Priority.METRICS

    def epoch_end(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Read the figures and record them."""
        figures = estimator.figures(TRAIN)
        estimator.history.record({**figures, **estimator.learning_rates()})
        *earlier, objective = estimator.history.get(OBJECTIVE, [0.0])
        if not math.isfinite(objective) and all(map(math.isfinite, earlier)) and estimator.world.first:
            coverages = [value for name, value in figures.items() if name.startswith(COVERAGE)]
            why = LACKING if coverages and not any(coverages) else DIVERGED
            estimator.logger.warning(
                "%s is %s in epoch %d: %s", OBJECTIVE, objective, estimator.state.epoch + 1, why
            )
