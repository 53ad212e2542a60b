"""Stop when a figure no longer improves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..arguments import finite_number, whole_number
from ..errors import counted, names, suggest
from ..events import EstimatorProtocol, Priority
from ..history import figure_text

__all__ = ["EarlyStoppingHandler"]

_WORST = {"min": math.inf, "max": -math.inf}


class EarlyStoppingHandler:
    """Stops a fit when a figure has not improved for `patience` epochs.

    At the end of each epoch the figure's value v is compared with the best so far, b: it improves if v < b -
    min_delta (direction "min") or v > b + min_delta ("max"); it then becomes the best. Otherwise the epoch
    counts as one without improvement, and the fit stops once there are `patience` of these in a row. With a
    patience of 0, as with 1, it stops at the first epoch that does not improve. An epoch in which the figure
    was not measured (NaN) is passed over: it neither counts nor ends the row. These are the rules of Gluon's
    handler of the same name, except that the direction is never guessed from the name. Each fit begins anew.

    Parameters
    ----------
    monitor : str
        The figure's name, such as ``"val_loss"``.
    mode : {"min", "max"}, optional
        Which direction is better; None: what the estimator knows of the figure.
    patience : int
        Number of measured epochs in a row without improvement after which to stop.
    min_delta : float
        By how much a value must be better, at least 0.
    baseline : float, optional
        The best value to begin with; None: whatever is measured first is an improvement.
    restore_best : bool
        Whether the net has the parameters of the best epoch, running statistics too, when the fit is over,
        whatever ended it. They are kept in memory. Where no epoch was better than the baseline, all stays as
        it is.

    Raises
    ------
    ValueError
        An argument is not valid; or, at the begin of a fit, the direction is not known.
    """

    priority = Priority.NORMAL

    def __init__(
        self,
        monitor: str,
        mode: str | None = None,
        patience: int = 0,
        min_delta: float = 0.0,
        baseline: float | None = None,
        restore_best: bool = False,
    ) -> None:
        if not isinstance(monitor, str):
            raise ValueError(
                f'EarlyStoppingHandler: monitor is {monitor!r}; valid is a name such as "val_loss"'
            )
        if mode is not None and mode not in _WORST:
            raise ValueError(
                f'EarlyStoppingHandler: mode is "{mode}"{suggest(mode, _WORST)}; valid are {names(_WORST)}'
            )
        self.monitor = monitor
        self.mode = mode
        self.patience = whole_number("EarlyStoppingHandler: patience", patience, least=0)
        self.min_delta = finite_number("EarlyStoppingHandler: min_delta", min_delta, least=0)
        self.baseline = baseline
        self.restore_best = restore_best
        self._kept: dict[str, Any] = {}  # the best parameters, of the first device

    def train_begin(self, estimator: EstimatorProtocol, **facts: Any) -> None:
        """Begin anew."""
        # Where nobody knows it, the estimator refuses the monitor with the first batch, before any update.
        direction = self.mode or estimator.direction(self.monitor) or "min"
        self._sign = 1.0 if direction == "min" else -1.0
        self._best = _WORST[direction] if self.baseline is None else self.baseline
        self._waited, self._best_epoch = 0, 0
        self._kept = {}

    def epoch_end(self, estimator: EstimatorProtocol, **facts: Any) -> bool:
        """Compare the epoch's value with the best, and say whether to stop."""
        value = estimator.history.last.get(self.monitor, math.nan)
        if math.isnan(value):
            return False
        if self._sign * value < self._sign * self._best - self.min_delta:
            self._best, self._waited, self._best_epoch = value, 0, estimator.state.epoch
            if self.restore_best:
                self._kept = _copies(estimator)
            return False
        self._waited += 1
        if self._waited < self.patience:
            return False
        best, epochs = figure_text(self._best), counted(self._waited, "epoch")
        estimator.state.stop(f"{self.monitor} has not improved on {best} for {epochs}")
        return True

    def train_end(self, estimator: Any, **facts: Any) -> None:
        """Put the best parameters back, if that is wanted."""
        for name, value in self._kept.items():
            estimator.parameters[name].set_data(value)
        if self._kept:
            place = f"epoch {self._best_epoch + 1}, {self.monitor} {figure_text(self._best)}"
            estimator.logger.info("the parameters are those of the best epoch: %s", place)
        self._kept = {}

    def state_dict(self) -> dict[str, Any]:
        """Return the best value and its parameters, and the epochs counted since."""
        return {
            "best": self._best,
            "best_epoch": self._best_epoch,
            "waited": self._waited,
            "kept": dict(self._kept),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where :meth:`state_dict` was called."""
        self._best, self._best_epoch, self._waited = state["best"], state["best_epoch"], state["waited"]
        self._kept = dict(state["kept"])


def _copies(estimator: Any) -> dict[str, Any]:
    found = {name: p for name, p in estimator.parameters.items() if p._data is not None}
    return {name: parameter.list_data()[0].copy() for name, parameter in found.items()}
