"""Log a run to a tracker of experiments, such as MLflow."""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from ..utils.arguments import Count, PathLike, Valid, checked
from ..utils.protocols import MultiEstimator
from ..utils.stages import TRAIN
from ..utils.text import last_line, quoted, shown, suggest
from .handler import Handler, Priority
from .triggers import Every

# The methods that a logger may have, and the arguments of LogTo that need them.
METHODS = {"log_settings": "settings", "log_figures": "every", "log_picture": "pictures", "log_file": "files"}
RUNNING = "batches/"  # before the names of running figures


class LogTo(Handler):
    """Logs a run to an object, such as those of ``multifit.loggers`` for W&B, MLflow and Comet.

    The object is called with what it has methods for::

        log_settings(settings)                    # a dict, before anything else
        log_figures(figures, step, epoch)         # a dict of numbers; epoch is None for running figures
        log_picture(name, figure, step, epoch)    # a matplotlib figure
        log_file(path)                            # a pathlib.Path, of a file or a folder
        close()                                   # at the end of each fit

    `step` is the number of batches trained, and `epoch` counts from 1. At the end of each epoch, all figures
    of the history that were measured are logged. Nothing is logged before the first batch has been checked.
    If the object raises an exception, one warning is logged, and the training goes on without it.

    Parameters
    ----------
    logger : object
        Has at least one of these methods.
    every : int, optional
        Also log the running figures after every n-th batch, as ``batches/train_loss`` and so on. This waits
        for the device.
    settings : mapping of str to object, optional
        Settings to log beside what the run was declared with: estimator, plan, optimizers, learning rates,
        limits, seed and versions.
    pictures : callable, optional
        Called with the estimator at the end of each epoch. Returns a dict of matplotlib figures by name.
    files : sequence of str or path
        Files and folders to log at the end of each fit.

    Raises
    ------
    ValueError
        `every` is not a whole number of at least 1, or `logger` lacks a method.
    """

    priority = Priority.LOGGING
    first_rank_only = True  # where several processes train together

    @checked
    def __init__(
        self,
        logger: object,
        every: Count | None = None,
        settings: Mapping[str, Any] | None = None,
        pictures: Callable[[Any], Mapping[str, Any]] | None = None,
        files: Annotated[Sequence[PathLike], Valid("a list of paths")] = (),
    ) -> None:
        given = {"every": every, "settings": settings, "pictures": pictures, "files": files}
        _check(logger, [name for name, value in given.items() if value])
        self.logger: Any = logger
        self.settings, self.pictures = dict(settings or {}), pictures
        self.files = [Path(path) for path in files]
        self._trigger = None if every is None else Every(every, "batch")
        self._begun = self._failed = False

    def train_begin(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Forget an earlier fit."""
        self._begun = self._failed = False

    def batch_end(self, estimator: MultiEstimator, **_: Any) -> None:
        """Log the settings after the first batch, and the running figures if the batch is the n-th."""
        self._begin(estimator)
        state = estimator.state
        if self._trigger is not None and not self._failed and self._trigger.due(state, "batch_end"):
            figures = {f"{RUNNING}{name}": value for name, value in estimator.figures(TRAIN).items()}
            self._log(estimator, "log_figures", _measured(figures), state.step, None)

    def epoch_end(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Log the epoch's figures and pictures."""
        self._begin(estimator)
        step, epoch = estimator.state.step, estimator.state.epoch + 1
        self._log(estimator, "log_figures", _measured(estimator.history.last), step, epoch)
        pictures = {} if self.pictures is None or self._failed else self.pictures(estimator)
        if not isinstance(pictures, Mapping) or not all(hasattr(p, "savefig") for p in pictures.values()):
            raise ValueError(f"pictures must return a dict of matplotlib figures, not {shown(pictures)}")
        for name, picture in pictures.items():
            self._log(estimator, "log_picture", name, picture, step, epoch)

    def train_end(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Log the files, and close the logger."""
        if self._begun:
            for path in self.files:
                self._log(estimator, "log_file", path)
            self._log(estimator, "close")

    def _begin(self, estimator: MultiEstimator) -> None:
        """Log the settings, once in a fit."""
        if not self._begun:
            self._begun = True
            self._log(estimator, "log_settings", {**_declared(estimator), **self.settings})

    def _log(self, estimator: MultiEstimator, method: str, *arguments: Any) -> None:
        """Call one of the logger's methods, if it has it; of its first error in a fit, log a warning."""
        if self._failed or not hasattr(self.logger, method):
            return
        try:
            getattr(self.logger, method)(*arguments)
        except Exception as error:
            self._failed = True
            with suppress(Exception):  # it may fail, too, or be missing
                self.logger.close()
            where = getattr(self.logger, "name", type(self.logger).__name__)
            message = "%s: %s failed (%s: %s); training continues, and nothing more is logged there"
            estimator.logger.warning(message, where, method, type(error).__name__, last_line(error))


def _check(logger: object, given: Sequence[str]) -> None:
    """Raise ValueError if an object has none of a logger's methods, or lacks one for a given argument."""
    has = [name for name in METHODS if callable(getattr(logger, name, None)) and not isinstance(logger, type)]
    lacks = [name for name, argument in METHODS.items() if argument in given and name not in has]
    if has and not lacks:
        return
    what = f"lacks {quoted(lacks)}, which {quoted(METHODS[name] for name in lacks)} needs"
    near = "".join(f'; it has "{name}"{hint}' for name in dir(logger) if (hint := suggest(name, METHODS)))
    raise ValueError(
        f"LogTo: logger is {shown(logger)}, which {what if lacks else 'cannot log'}{near}; valid is an "
        f"object with some of the methods {quoted(METHODS)}, such as those of multifit.loggers"
    )


def _declared(estimator: MultiEstimator) -> dict[str, Any]:
    """Return what a run was declared with, as numbers and texts."""
    plan, state = estimator.plan, estimator.state
    seed = state.seed if state.fit_seed is None else state.fit_seed
    settings: dict[str, Any] = {"estimator": repr(estimator), "seed": seed}
    settings.update(epochs=estimator.max_epoch, batches=estimator.max_batch, ranks=estimator.world.size)
    if plan is not None:
        settings.update(plan=str(plan), batch_size=plan.samples, devices=", ".join(plan.devices))
        for trainer in plan.trainers:
            settings[f"{trainer.name}.optimizer"] = trainer.optimizer
            settings[f"{trainer.name}.learning_rate"] = trainer.learning_rate
    for name in ("multifit", "mxnet", "torch", "numpy"):
        settings[f"version.{name}"] = getattr(sys.modules.get(name), "__version__", None)
    return {name: value for name, value in settings.items() if value is not None}


def _measured(figures: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in figures.items() if not math.isnan(value)}
