"""Let all processes that train together stop at the same batch."""

from __future__ import annotations

from typing import Any

from ..events import Priority
from ..protocols import MultiEstimator


class StopAgreement:
    """Tells the other ranks that this one was asked to stop, and stops if another one was.

    It is called after the handlers that stop a fit, and before the checkpoint of where it stopped is saved.
    """

    priority = (Priority.STOPPING + Priority.CHECKPOINT) / 2

    def batch_end(self, estimator: MultiEstimator, **_: Any) -> None:
        """Agree on whether this was the last batch, or the last epoch."""
        estimator.state.agree()

    epoch_end = batch_end
