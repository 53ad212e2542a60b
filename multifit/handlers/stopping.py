"""Stop after so many epochs or batches."""

from __future__ import annotations

from typing import Any

from ..events import Priority, Running
from ..triggers import whole_number

__all__ = ["StoppingHandler"]


class StoppingHandler:
    """Stops a fit after a number of epochs or batches, whichever comes first, counted from the fit's begin.

    Parameters
    ----------
    max_epoch, max_batch : int, optional
        The limits. None: the estimator's ``max_epoch`` or ``max_batch``, read anew each time, because other
        handlers may rewrite them during the run.

    Raises
    ------
    ValueError
        A limit is no whole number of at least 1.
    """

    priority = Priority.STOPPING

    def __init__(self, max_epoch: int | None = None, max_batch: int | None = None) -> None:
        self.max_epoch = None if max_epoch is None else whole_number("StoppingHandler: max_epoch", max_epoch)
        self.max_batch = None if max_batch is None else whole_number("StoppingHandler: max_batch", max_batch)
        self._epochs = self._batches = 0

    def train_begin(self, estimator: Running, **facts: Any) -> None:
        """Begin to count anew."""
        self._epochs = self._batches = 0

    def batch_end(self, estimator: Running, **facts: Any) -> bool:
        """Count the batch, and say whether to stop."""
        self._batches += 1
        limit = estimator.max_batch if self.max_batch is None else self.max_batch
        return _stop(estimator, self._batches, limit, "batches" if limit != 1 else "batch")

    def epoch_end(self, estimator: Running, **facts: Any) -> bool:
        """Count the epoch, and say whether to stop."""
        self._epochs += 1
        limit = estimator.max_epoch if self.max_epoch is None else self.max_epoch
        return _stop(estimator, self._epochs, limit, "epochs" if limit != 1 else "epoch")


def _stop(estimator: Running, count: int, limit: int | None, unit: str) -> bool:
    if limit is None or count < limit:
        return False
    estimator.state.stop(f"{limit} {unit}")
    return True
