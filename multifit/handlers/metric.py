"""Write the epoch's training figures down."""

from __future__ import annotations

from typing import Any

from ..events import EstimatorProtocol, Priority

__all__ = ["MetricHandler"]


class MetricHandler:
    """Records the training figures and the learning rates in the history at the end of each epoch.

    It comes first, so that every other handler finds them there without reading (and so synchronising) again.
    """

    priority = Priority.METRICS

    def epoch_end(self, estimator: EstimatorProtocol, **facts: Any) -> None:
        """Read the figures and record them."""
        estimator.history.record({**estimator.figures("train"), **estimator.learning_rates()})
