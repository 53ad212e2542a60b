"""Record the training figures."""

from __future__ import annotations

from typing import Any

from ..events import EstimatorProtocol, Priority


class MetricHandler:
    """Records the training figures and the learning rates in the history at the end of each epoch.

    It is called before all other handlers, which read the history: reading the figures themselves would
    synchronise with the device again.
    """

    priority = Priority.METRICS

    def epoch_end(self, estimator: EstimatorProtocol, **facts: Any) -> None:
        """Read the figures and record them."""
        estimator.history.record({**estimator.figures("train"), **estimator.learning_rates()})
