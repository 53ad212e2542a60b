"""Evaluate on validation data every n epochs or batches."""

from collections.abc import Mapping
from typing import Any

from ..utils.arguments import Count, FromZero, checked
from ..utils.protocols import Loader, MultiEstimator
from .checked_handlers import checked_handlers
from .handler import Handler, Priority
from .triggers import Every


class ValidationHandler(Handler):
    """Evaluates on `val_data` during a fit; the estimator records the figures as ``val_…``.

    If both periods end at the same batch, it evaluates once. It does not evaluate at the end of an epoch in
    which Ctrl-C ended the fit; the resumed fit does.

    Parameters
    ----------
    val_data : iterable or dict of str to iterable
        Data for ``estimator.evaluate``; ``{"clean": a, "noisy": b}`` are two sets, with figures
        ``val_clean_loss`` and ``val_noisy_loss``.
    epoch_period : int, optional
        Evaluate at the end of every n-th epoch; None for never.
    batch_period : int, optional
        Evaluate after every n-th batch, counted over all epochs; None for never.
    skip : int
        The number of epochs (for `batch_period`, batches) before counting begins.
    event_handlers : object or iterable of object, optional
        Handlers for the evaluation only. The defaults are those of ``estimator.evaluate``.
    batches : int, optional
        Evaluate only the first n batches, of each loader if there are several; None for all.

    Raises
    ------
    ValueError
        A period or `skip` is not valid, or both periods are None.
    """

    priority = Priority.VALIDATION

    @checked
    def __init__(
        self,
        val_data: Loader,
        epoch_period: Count | None = 1,
        batch_period: Count | None = None,
        skip: FromZero = 0,
        event_handlers: Any = None,
        batches: Count | None = None,
    ) -> None:
        if epoch_period is None and batch_period is None:
            raise ValueError("ValidationHandler would never evaluate: give epoch_period or batch_period")
        self.val_data, self.batches = val_data, batches
        self.event_handlers = None
        if event_handlers is not None:
            self.event_handlers = checked_handlers(event_handlers, "ValidationHandler: event_handlers")
        self._epochs = None if epoch_period is None else Every(epoch_period, "epoch", skip=skip)
        self._batches = None if batch_period is None else Every(batch_period, "batch", skip=skip)
        self._last_step: int | None = None

    def train_begin(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Forget an earlier fit."""
        self._last_step = None

    def batch_end(self, estimator: MultiEstimator, **_: Any) -> None:
        """Evaluate if the batch is the n-th."""
        self._evaluate_if_due(estimator, self._batches, "batch_end")

    def epoch_end(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Evaluate if the epoch is the n-th."""
        self._evaluate_if_due(estimator, self._epochs, "epoch_end")

    def state_dict(self) -> dict[str, Any]:
        """Return the step of the last evaluation."""
        return {"evaluated": self._last_step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._last_step = state["evaluated"]

    def _evaluate_if_due(self, estimator: MultiEstimator, trigger: Every | None, event: str) -> None:
        step = estimator.state.step
        due = trigger is not None and trigger.due(estimator.state, event) and step != self._last_step
        if due and not estimator.state.interrupted:
            self._last_step = step
            estimator.evaluate(self.val_data, self.event_handlers, estimator.batch_axis, self.batches)
