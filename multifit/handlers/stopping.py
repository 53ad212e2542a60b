"""Stop after a number of epochs or batches, after some time, or on a condition."""

import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from ..arguments import Count, Positive, Valid, checked
from ..errors import counted
from ..events import Handler, Priority
from ..protocols import MultiEstimator
from ..state import RunState

_Condition = Annotated[Callable[[RunState], bool | str], Valid("a function of the run's state")]


class StoppingHandler(Handler):
    """Stops a fit at the first of several limits, counted from the beginning of the fit.

    The limits are checked at the end of each batch and of each epoch. A resumed fit continues the counts,
    including the time.

    Parameters
    ----------
    max_epoch, max_batch : int, optional
        The limits. They default to the estimator's ``max_epoch`` and ``max_batch``, which are read each time,
        because other handlers may change them.
    max_seconds : float, optional
        The time after which to stop, in seconds, above 0. It includes evaluations.
    condition : callable, optional
        Called with the `RunState`. If it returns a true value, the fit stops; a string is the stop reason.
    clock : callable
        Returns the time in seconds.

    Raises
    ------
    ValueError
        A limit is not valid.
    """

    priority = Priority.STOPPING

    @checked
    def __init__(
        self,
        max_epoch: Count | None = None,
        max_batch: Count | None = None,
        max_seconds: Positive | None = None,
        condition: _Condition | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.max_epoch, self.max_batch = max_epoch, max_batch
        self.max_seconds, self.condition = max_seconds, condition
        self._clock = clock
        self._started = 0.0
        self._epochs = self._batches = 0

    def reached(self, estimator: MultiEstimator) -> str | None:
        """Return the limit that a resumed run has already reached, in words, or None."""
        return self._epoch_limit(estimator) or self._batch_limit(estimator) or self._other_reason(estimator)

    def batches_left(self, estimator: MultiEstimator) -> int | None:
        """Return the number of batches until the limit, or None if there is none."""
        limit = estimator.max_batch if self.max_batch is None else self.max_batch
        return None if limit is None else limit - self._batches

    def train_begin(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Start counting."""
        self._started = self._clock()
        self._epochs = self._batches = 0

    def batch_end(self, estimator: MultiEstimator, **_: Any) -> bool:
        """Count the batch, and return whether to stop."""
        self._batches += 1
        return self._stop(estimator, self._batch_limit(estimator))

    def epoch_end(self, estimator: MultiEstimator, **arguments: Any) -> bool:
        """Count the epoch, and return whether to stop."""
        self._epochs += 1
        return self._stop(estimator, self._epoch_limit(estimator))

    def state_dict(self) -> dict[str, Any]:
        """Return the counts and the seconds so far."""
        return {"epochs": self._epochs, "batches": self._batches, "seconds": self._clock() - self._started}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on counting from what `state_dict` returned."""
        self._epochs, self._batches = state["epochs"], state["batches"]
        self._started = self._clock() - state["seconds"]

    def _stop(self, estimator: MultiEstimator, limit: str | None) -> bool:
        reason = limit or self._other_reason(estimator)
        if reason is not None:
            estimator.state.stop(reason)
        return reason is not None

    def _epoch_limit(self, estimator: MultiEstimator) -> str | None:
        limit = estimator.max_epoch if self.max_epoch is None else self.max_epoch
        return None if limit is None or self._epochs < limit else counted(limit, "epoch")

    def _batch_limit(self, estimator: MultiEstimator) -> str | None:
        left = self.batches_left(estimator)
        return None if left is None or left > 0 else counted(self._batches + left, "batch", "batches")

    def _other_reason(self, estimator: MultiEstimator) -> str | None:
        if self.max_seconds is not None and self._clock() - self._started >= self.max_seconds:
            return f"{self.max_seconds:g} seconds"
        answer = self.condition(estimator.state) if self.condition is not None else None
        if isinstance(answer, str):
            return answer or None
        return "its condition" if answer else None
