"""Stop after so many epochs or batches, after some time, or when the user says."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Callable

from ..arguments import finite_number, whole_number
from ..errors import counted, shown
from ..events import EstimatorProtocol, Priority
from ..state import RunState

__all__ = ["StoppingHandler"]

PLURALS = {"epoch": "epochs", "batch": "batches"}


class StoppingHandler:
    """Stops a fit at the first of several limits, counted from the fit's begin.

    It looks at the end of each batch and of each epoch. A fit that is resumed goes on counting, its time too.

    Parameters
    ----------
    max_epoch, max_batch : int, optional
        The limits. None: the estimator's ``max_epoch`` or ``max_batch``, read anew each time, because other
        handlers may rewrite them during the run.
    max_seconds : float, optional
        The time after which to stop, in seconds, above 0; evaluating counts.
    condition : callable, optional
        ``condition(state)``, with the `RunState`: true, or a text that says why, stops the fit.
    clock : callable
        Returns seconds since any moment.

    Raises
    ------
    ValueError
        A limit is not valid.
    """

    priority = Priority.STOPPING

    def __init__(
        self,
        max_epoch: int | None = None,
        max_batch: int | None = None,
        max_seconds: float | None = None,
        condition: Callable[[RunState], bool | str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.max_epoch = None if max_epoch is None else whole_number("StoppingHandler: max_epoch", max_epoch)
        self.max_batch = None if max_batch is None else whole_number("StoppingHandler: max_batch", max_batch)
        if max_seconds is not None:
            max_seconds = finite_number("StoppingHandler: max_seconds", max_seconds, above=0)
        if condition is not None and not callable(condition):
            raise ValueError(
                f"StoppingHandler: condition is {shown(condition)}; valid is a function of the run's state"
            )
        self.max_seconds, self.condition = max_seconds, condition
        self._clock = clock
        self._begun = 0.0
        self._epochs = self._batches = 0

    def reached(self, estimator: EstimatorProtocol) -> str | None:
        """Return what a run that goes on has reached already, in words; None where there is more to do."""
        return (
            self._limit("epoch", self._epochs, self.max_epoch, estimator.max_epoch)
            or self._limit("batch", self._batches, self.max_batch, estimator.max_batch)
            or self._other_reason(estimator)
        )

    def train_begin(self, estimator: EstimatorProtocol, **facts: Any) -> None:
        """Begin to count anew."""
        self._begun = self._clock()
        self._epochs = self._batches = 0

    def batch_end(self, estimator: EstimatorProtocol, **_: Any) -> bool:
        """Count the batch, and say whether to stop."""
        self._batches += 1
        return self._stop(estimator, self._limit("batch", self._batches, self.max_batch, estimator.max_batch))

    def epoch_end(self, estimator: EstimatorProtocol, **facts: Any) -> bool:
        """Count the epoch, and say whether to stop."""
        if (
            not estimator.state.interrupted
        ):  # else it is not over: the run that goes on ends it, and counts it
            self._epochs += 1
        return self._stop(estimator, self._limit("epoch", self._epochs, self.max_epoch, estimator.max_epoch))

    def state_dict(self) -> dict[str, Any]:
        """Return what was counted so far."""
        return {"epochs": self._epochs, "batches": self._batches, "seconds": self._clock() - self._begun}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on counting from what :meth:`state_dict` returned."""
        self._epochs, self._batches = state["epochs"], state["batches"]
        self._begun = self._clock() - state["seconds"]

    def _stop(self, estimator: EstimatorProtocol, limit: str | None) -> bool:
        reason = limit or self._other_reason(estimator)
        if reason is not None:
            estimator.state.stop(reason)
        return reason is not None

    @staticmethod
    def _limit(unit: str, count: int, own: int | None, theirs: int | None) -> str | None:
        limit = theirs if own is None else own
        if limit is None or count < limit:
            return None
        return counted(limit, unit, PLURALS[unit])

    def _other_reason(self, estimator: EstimatorProtocol) -> str | None:
        if self.max_seconds is not None and self._clock() - self._begun >= self.max_seconds:
            return f"{self.max_seconds:g} seconds"
        answer = self.condition is not None and self.condition(estimator.state)
        return answer if answer and isinstance(answer, str) else "its condition" if answer else None
