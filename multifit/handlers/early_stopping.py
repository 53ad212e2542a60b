"""Stop when figures no longer improve."""

import copy
from collections.abc import Mapping
from typing import Any

from ..utils.arguments import FromZero, Mode, NotNegative, checked
from ..utils.protocols import MultiEstimator
from ..utils.stages import PREFIXES, TRAIN, split_figure
from .handler import Handler
from .history import figure_text
from .monitor import Monitor, Monitored


class EarlyStoppingHandler(Handler):
    """Stops a fit when no monitored figure has improved for `patience` epochs.

    At the end of each epoch, the figure's value v is compared with the best so far, b. It improves if v < b -
    min_delta (mode "min") or v > b + min_delta ("max"), and is then the new best. The fit stops after
    `patience` epochs in a row without improvement. A patience of 0 is the same as 1: the fit stops at the
    first epoch that does not improve. Epochs in which the figure was not measured (NaN) are ignored. Of
    several figures, it is enough that one improves.

    These are the rules of Gluon's handler of the same name, except that the mode is never guessed from the
    figure's name. Each fit starts from scratch.

    Parameters
    ----------
    monitor : str, sequence of str or callable
        The figure's name, such as ``"val_loss"``; the names of several; or a function of the figures by name
        that returns a number.
    mode : {"min", "max"}, optional
        Whether lower or higher values are better. Defaults to what the estimator knows about the figure;
        required for a function.
    patience : int
        Number of measured epochs in a row without improvement after which to stop.
    min_delta : float
        How much better a value must be to count as an improvement, at least 0.
    baseline : float, optional
        The best value of each figure to start with. By default, the first measured value is an improvement.
    restore_best : bool
        Whether to restore the parameters of the last epoch that improved, including running statistics, when
        the fit is over, for whatever reason. They are copied in memory; if evaluations use averages, as with
        WeightAveraging, and a validation figure is monitored, the averages are. If no epoch improved on the
        baseline, the parameters stay as they are.

    Raises
    ------
    ValueError
        An argument is not valid.
    """

    @checked
    def __init__(
        self,
        monitor: Monitored,
        mode: Mode | None = None,
        patience: FromZero = 0,
        min_delta: NotNegative = 0.0,
        baseline: float | None = None,
        restore_best: bool = False,
    ) -> None:
        self._monitor = Monitor(type(self).__name__, monitor, mode, min_delta)
        self.monitor, self.mode, self.min_delta = monitor, mode, min_delta
        self.patience, self.baseline = patience, baseline
        self.restore_best = restore_best
        self._waited = self._best_epoch = 0
        self._best_values: dict[str, float] = {}  # of that epoch
        self._best_parameters: dict[str, Any] = {}

    def train_begin(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Forget an earlier fit."""
        self._monitor.begin(estimator)
        if self.baseline is not None:
            self._monitor.best = dict.fromkeys(self._monitor.figures, self.baseline)
        self._waited = self._best_epoch = 0
        self._best_values, self._best_parameters = {}, {}

    def epoch_end(self, estimator: MultiEstimator, **arguments: Any) -> bool:
        """Compare the epoch's values with the best, and return whether to stop."""
        values = self._monitor.values(estimator)
        if not values:
            return False
        if self._monitor.improved(values):
            self._waited, self._best_epoch, self._best_values = 0, estimator.state.epoch, values
            if self.restore_best:
                self._best_parameters = self._copies(estimator)
            return False
        self._waited += 1
        if self._waited < self.patience:
            return False
        estimator.state.stop(self._monitor.reason(self._waited))
        return True

    def train_end(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Restore the best parameters, if there are any."""
        if self._best_parameters:
            estimator.set_values(self._best_parameters)
            figures = [f"{name} {figure_text(value)}" for name, value in self._best_values.items()]
            place = ", ".join([f"epoch {self._best_epoch + 1}", *figures])
            estimator.logger.info("restored the parameters of the best epoch: %s", place)
        self._best_parameters = {}

    def state_dict(self) -> dict[str, Any]:
        """Return the best values, the best epoch with its parameters, and the number of epochs since."""
        return {
            "best": dict(self._monitor.best),
            "best_epoch": self._best_epoch,
            "best_values": dict(self._best_values),
            "waited": self._waited,
            "kept": dict(self._best_parameters),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._monitor.best = dict(state["best"])
        self._best_epoch, self._waited = state["best_epoch"], state["waited"]
        self._best_values = dict(state["best_values"])
        self._best_parameters = dict(state["kept"])

    def _copies(self, estimator: MultiEstimator) -> dict[str, Any]:
        """Return copies of the parameters on which the figures were measured."""
        in_training = all(split_figure(figure)[0] == PREFIXES[TRAIN] for figure in self._monitor.figures)
        evaluated = {} if in_training else estimator.evaluated_parameters()
        return {**estimator.values(), **{name: copy.copy(array) for name, array in evaluated.items()}}
