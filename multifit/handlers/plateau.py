"""Lower the learning rate when a figure no longer improves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..arguments import finite_number, whole_number
from ..errors import Problem, counted, names, raise_problems, suggest
from ..events import EstimatorProtocol, Priority
from ..history import figure_text

__all__ = ["PlateauHandler"]

_SIGNS = {"min": 1.0, "max": -1.0}


class PlateauHandler:
    """Multiplies learning rates by `factor` when a figure has not improved for `patience` epochs.

    What an improvement is, and how epochs are counted, is as in `EarlyStoppingHandler`: an epoch in which the
    figure was not measured (NaN) is passed over. Once the rates were lowered, counting begins anew. A trainer
    with a schedule keeps it, scaled. Each fit begins anew, with the rates as they are then.

    Parameters
    ----------
    monitor : str
        The figure's name, such as ``"val_loss"``.
    factor : float
        What the rates are multiplied with, above 0 and below 1.
    patience : int
        Number of measured epochs in a row without improvement after which to lower the rates.
    min_delta : float
        By how much a value must be better than the best so far, at least 0.
    cooldown : int
        Number of measured epochs after a lowering in which nothing is counted.
    min_lr : float
        No rate is lowered below this, at least 0.
    mode : {"min", "max"}, optional
        Which direction is better; None: what the estimator knows of the figure.
    trainers : str or sequence of str, optional
        Names of the trainers whose rates are lowered; None: all.

    Raises
    ------
    ValueError
        An argument is not valid; or, at the begin of a fit, there is no such trainer (a TrainerError), or its
        optimizer makes no use of a rate.
    """

    priority = Priority.NORMAL

    def __init__(
        self,
        monitor: str,
        factor: float = 0.1,
        patience: int = 10,
        min_delta: float = 0.0,
        cooldown: int = 0,
        min_lr: float = 0.0,
        mode: str | None = None,
        trainers: str | Sequence[str] | None = None,
    ) -> None:
        if not isinstance(monitor, str):
            raise ValueError(f'PlateauHandler: monitor is {monitor!r}; valid is a name such as "val_loss"')
        if mode is not None and mode not in _SIGNS:
            raise ValueError(
                f'PlateauHandler: mode is "{mode}"{suggest(mode, _SIGNS)}; valid are {names(_SIGNS)}'
            )
        self.monitor, self.mode = monitor, mode
        self.factor = finite_number("PlateauHandler: factor", factor, above=0, below=1)
        self.patience = whole_number("PlateauHandler: patience", patience, least=0)
        self.cooldown = whole_number("PlateauHandler: cooldown", cooldown, least=0)
        self.min_delta = finite_number("PlateauHandler: min_delta", min_delta, least=0)
        self.min_lr = finite_number("PlateauHandler: min_lr", min_lr, least=0)
        self.trainers = [trainers] if isinstance(trainers, str) else trainers
        self._best: float | None = None
        self._waited = self._cooling = 0

    def train_begin(self, estimator: EstimatorProtocol, **facts: Any) -> None:
        """Begin anew, and look whether the trainers are there."""
        self._best, self._waited, self._cooling = None, 0, 0
        # Where nobody knows it, the estimator refuses the monitor with the first batch, before any update.
        self._sign = _SIGNS[self.mode or estimator.direction(self.monitor) or "min"]
        if estimator.learning_rates():  # none: what is wrong with the trainers is told with the first batch
            raise_problems(Problem("trainer", message) for message in self._unusable(_trainers(estimator)))

    def epoch_end(self, estimator: EstimatorProtocol, **facts: Any) -> None:
        """Compare the epoch's value with the best, and lower the rates where it is time."""
        value = estimator.history.last.get(self.monitor, math.nan)
        if math.isnan(value):
            return
        improved = self._best is None or self._sign * value < self._sign * self._best - self.min_delta
        if improved:
            self._best = value
        if self._cooling:
            self._cooling -= 1
            return
        self._waited = 0 if improved else self._waited + 1
        if not improved and self._waited >= self.patience:
            self._lower(estimator)
            self._waited, self._cooling = 0, self.cooldown

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps: the best value, and the epochs counted since."""
        return {"best": self._best, "waited": self._waited, "cooling": self._cooling}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where :meth:`state_dict` was called."""
        self._best, self._waited, self._cooling = state["best"], state["waited"], state["cooling"]

    def _unusable(self, trainers: Mapping[str, Any]) -> list[str]:
        wanted = list(trainers) if self.trainers is None else self.trainers
        messages = []
        for name in wanted:
            if name not in trainers:
                message = (
                    f'there is no trainer "{name}"{suggest(name, trainers)}; valid are {names(trainers)}'
                )
                messages.append(f"PlateauHandler: {message}")
            elif "learning_rate" not in trainers[name].settable:
                kind = type(trainers[name].optimizer).__name__
                message = f'the trainer "{name}" has no learning rate to lower: {kind} makes no use of it'
                messages.append(f"PlateauHandler: {message}; leave it out with trainers=[…]")
        return messages

    def _lower(self, estimator: EstimatorProtocol) -> None:
        trainers = _trainers(estimator)
        changes = []
        for name in trainers if self.trainers is None else self.trainers:
            before = trainers[name].learning_rate
            after = max(before * self.factor, self.min_lr)
            if after < before:
                trainers[name].learning_rate = after
                whose = f"{name} " if len(trainers) > 1 else ""
                changes.append(f"{whose}{figure_text(before)} to {figure_text(after)}")
        if changes:
            assert self._best is not None  # the first value that is measured is an improvement
            best = figure_text(self._best)
            why = f"{self.monitor} has not improved on {best} for {counted(self._waited, 'epoch')}"
            estimator.logger.info("%s: learning rate %s", why, ", ".join(changes))


def _trainers(estimator: Any) -> Mapping[str, Any]:
    found: Mapping[str, Any] = estimator.trainers
    return found
