"""Measure on other data every n epochs or batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..events import EstimatorProtocol, Priority
from ..triggers import Every

__all__ = ["ValidationHandler"]


class ValidationHandler:
    """Evaluates on `val_data` in the course of a fit; the estimator records the figures as ``val_…``.

    However the periods meet, nothing is evaluated twice between two updates; nor at all after Ctrl-C.

    Parameters
    ----------
    val_data : iterable
        What ``estimator.evaluate`` takes.
    epoch_period : int, optional
        Evaluate at the end of each n-th epoch; None: not at the ends of epochs.
    batch_period : int, optional
        Evaluate after each n-th batch, counted over the epochs; None: not after batches.
    skip : int
        The number of epochs (for `batch_period`: of batches) that pass before counting begins.
    event_handlers : object or iterable of object, optional
        Handlers for the evaluation alone; None: as ``estimator.evaluate`` does by default.

    Raises
    ------
    ValueError
        A period or `skip` is not valid, or both periods are None.
    """

    priority = Priority.VALIDATION

    def __init__(
        self,
        val_data: Any,
        epoch_period: int | None = 1,
        batch_period: int | None = None,
        skip: int = 0,
        event_handlers: Any = None,
    ) -> None:
        if epoch_period is None and batch_period is None:
            raise ValueError("ValidationHandler would never evaluate: give epoch_period or batch_period")
        self.val_data = val_data
        self.event_handlers = event_handlers
        self._epochs = None if epoch_period is None else Every(epoch_period, "epoch", skip=skip)
        self._batches = None if batch_period is None else Every(batch_period, "batch", skip=skip)
        self._evaluated: int | None = None

    def train_begin(self, estimator: EstimatorProtocol, **facts: Any) -> None:
        """Forget what an earlier fit evaluated."""
        self._evaluated = None

    def batch_end(self, estimator: EstimatorProtocol, **_: Any) -> None:
        """Evaluate where the batch is due."""
        self._evaluate_if_due(estimator, self._batches, "batch_end")

    def epoch_end(self, estimator: EstimatorProtocol, **facts: Any) -> None:
        """Evaluate where the epoch is due."""
        self._evaluate_if_due(estimator, self._epochs, "epoch_end")

    def state_dict(self) -> dict[str, Any]:
        """Return the step at which was evaluated last."""
        return {"evaluated": self._evaluated}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set what :meth:`state_dict` returned."""
        self._evaluated = state["evaluated"]

    def _evaluate_if_due(self, estimator: EstimatorProtocol, trigger: Every | None, moment: str) -> None:
        step = estimator.state.step
        due = trigger is not None and trigger.due(estimator.state, moment) and step != self._evaluated
        if due and not estimator.state.interrupted:
            self._evaluated = step
            estimator.evaluate(
                self.val_data, event_handlers=self.event_handlers, batch_axis=estimator.batch_axis
            )
