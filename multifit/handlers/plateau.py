"""Reduce the learning rate when a figure no longer improves."""

from collections.abc import Mapping
from typing import Any

from ..utils.arguments import FromZero, Mode, Names, NotNegative, OpenShare, checked
from ..utils.errors import Problem, raise_problems
from ..utils.protocols import MultiEstimator
from ..utils.text import quoted, suggest
from .handler import Handler
from .history import figure_text
from .monitor import Monitor, Monitored


class PlateauHandler(Handler):
    """Multiplies learning rates by `factor` when a figure has not improved for `patience` epochs.

    Improvements and epochs are counted as by `EarlyStoppingHandler`; epochs in which the figure was not
    measured (NaN) are ignored. After each reduction, counting starts again. A trainer's schedule goes on,
    scaled by the factor. Each fit starts from scratch, with the learning rates as they are then.

    Parameters
    ----------
    monitor : str, sequence of str or callable
        The figures, as for `EarlyStoppingHandler`.
    factor : float
        The factor by which learning rates are multiplied, between 0 and 1 (exclusive).
    patience : int
        Number of measured epochs in a row without improvement after which to reduce the rates.
    min_delta : float
        How much better than the best a value must be to count as an improvement, at least 0.
    cooldown : int
        Number of measured epochs after a reduction that are not counted.
    min_lr : float
        The lowest learning rate to reduce to, at least 0.
    mode : {"min", "max"}, optional
        Whether lower or higher values are better. Defaults to what the estimator knows about the figure;
        required for a function.
    trainers : str or sequence of str, optional
        Names of the trainers whose rates are reduced. Defaults to all.

    Raises
    ------
    ValueError
        An argument is not valid. At the beginning of a fit, a TrainerError is raised if a trainer does not
        exist or its optimizer has no learning rate.
    """

    @checked
    def __init__(
        self,
        monitor: Monitored,
        factor: OpenShare = 0.1,
        patience: FromZero = 10,
        min_delta: NotNegative = 0.0,
        cooldown: FromZero = 0,
        min_lr: NotNegative = 0.0,
        mode: Mode | None = None,
        trainers: Names | None = None,
    ) -> None:
        self._monitor = Monitor(type(self).__name__, monitor, mode, min_delta)
        self.monitor, self.mode, self.min_delta = monitor, mode, min_delta
        self.factor, self.patience, self.cooldown, self.min_lr = factor, patience, cooldown, min_lr
        self.trainers = [trainers] if isinstance(trainers, str) else trainers
        self._waited = self._cooling = 0

    def train_begin(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Forget an earlier fit, and check that the trainers exist."""
        self._monitor.begin(estimator)
        self._waited = self._cooling = 0
        if estimator.learning_rates():  # if empty, the first batch reports what is wrong with the trainers
            known = estimator.trainers
            message = 'PlateauHandler: there is no trainer "{}"{}; valid are {}'
            raise_problems(
                Problem("trainer", message.format(name, suggest(name, known), quoted(known)))
                for name in self.trainers or ()
                if name not in known
            )

    def epoch_end(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Compare the epoch's values with the best, and reduce the rates if it is time."""
        values = self._monitor.values(estimator)
        if not values:
            return
        improved = self._monitor.improved(values)
        if self._cooling:
            self._cooling -= 1
            return
        self._waited = 0 if improved else self._waited + 1
        if not improved and self._waited >= self.patience:
            self._reduce(estimator)
            self._waited, self._cooling = 0, self.cooldown

    def state_dict(self) -> dict[str, Any]:
        """Return the best values, the number of epochs since, and the epochs of cooldown that are left."""
        return {"best": dict(self._monitor.best), "waited": self._waited, "cooling": self._cooling}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._monitor.best = dict(state["best"])
        self._waited, self._cooling = state["waited"], state["cooling"]

    def _reduce(self, estimator: MultiEstimator) -> None:
        trainers = estimator.trainers
        changes = []
        for name in trainers if self.trainers is None else self.trainers:
            before = trainers[name].learning_rate
            if before is not None and (after := max(before * self.factor, self.min_lr)) < before:
                trainers[name].learning_rate = after
                owner = f"{name} " if len(trainers) > 1 else ""
                changes.append(f"{owner}{figure_text(before)} to {figure_text(after)}")
        if changes:
            reason = self._monitor.reason(self._waited)
            estimator.logger.info("%s: learning rate %s", reason, ", ".join(changes))
