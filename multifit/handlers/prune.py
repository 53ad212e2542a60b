"""End trials of Optuna that are not promising."""

from typing import Any

from ..utils.arguments import FigureName, checked
from ..utils.protocols import MultiEstimator
from ..utils.text import counted, shown
from .handler import Handler
from .monitor import Monitor


class Prune(Handler):
    """Reports a figure to an Optuna trial after each epoch, and ends the fit if the trial should be pruned.

    The epoch is completed first: it is logged, and saved if a checkpoint is due. Then `fit` raises
    ``optuna.TrialPruned``, which the study expects. With several processes, the first one's trial decides for
    all of them; the others' may be None.

    Parameters
    ----------
    trial : optuna.Trial
        The trial that the study passed to the objective.
    monitor : str
        The figure's name, such as ``"val_loss"``. Epochs in which it was not measured are not reported.

    Raises
    ------
    ValueError
        The study has several objectives. A fit raises it too if the first process has no trial, if there is
        no such figure, or if the study minimizes a figure of which higher values are better, or the reverse.
    """

    @checked
    def __init__(self, trial: Any, monitor: FigureName) -> None:
        study = getattr(trial, "study", None)  # a FixedTrial has none
        directions = [each.name.lower() for each in study.directions] if study else ["minimize"]
        if len(directions) > 1:
            raise ValueError(f"Prune: Optuna prunes for one objective, and the study has {len(directions)}")
        self.monitor: str = monitor
        self.mode = directions[0][:3]  # "min" or "max"
        self._trial, self._study, self._pruned = trial, study, False
        self._monitor = Monitor("Prune", monitor, self.mode)

    def train_begin(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Compare the figure's direction with the study's."""
        self._pruned = False
        if estimator.world.first and not hasattr(self._trial, "should_prune"):
            raise ValueError(f"Prune: {shown(self._trial)} is no trial; give the objective's argument")
        self._monitor.begin(estimator)
        better = estimator.direction(self.monitor)
        if self._study and better not in (None, self.mode):
            raise ValueError(
                f'Prune: the study {self.mode}imizes, but of "{self.monitor}" '
                f"{'lower' if better == 'min' else 'higher'} values are better; use "
                f'optuna.create_study(direction="{better}imize")'
            )

    def epoch_end(self, estimator: MultiEstimator, complete: bool = True, **_: Any) -> bool:
        """Report the figure of a whole epoch, and return whether to stop."""
        values, world = self._monitor.values(estimator) if complete else {}, estimator.world
        if world.first:
            for value in values.values():
                self._trial.report(value, estimator.state.epoch)
                self._pruned = self._trial.should_prune()
        self._pruned = world.from_first(self._pruned)
        if self._pruned:
            estimator.state.stop("pruned by Optuna")
        return self._pruned

    def train_end(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Raise optuna.TrialPruned if the trial was pruned."""
        if self._pruned:
            from optuna import TrialPruned

            raise TrialPruned(f"pruned by {self.monitor}, after {counted(estimator.history.epochs, 'epoch')}")
