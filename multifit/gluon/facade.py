"""What handlers written for Gluon's Estimator read: one trainer, one loss, metrics that are EvalMetrics."""

from __future__ import annotations

import math
import os
import tempfile
from contextlib import contextmanager
from typing import Any, Callable, Iterator, Mapping, Sequence
from zipfile import ZipFile

from ..events import handler_name, unwrapped
from ..files import atomic_path
from ..protocols import Figures, Trainer
from ..spec import TaskSpec
from .compat import mx
from .execution.result import StepResult
from .metrics.stage_figures import StageFigures

_GLUONS = mx.gluon.contrib.estimator.event_handler
_GLUON_PREFIXES = {"train": "training", "val": "validation"}


class FigureMetric(mx.metric.EvalMetric):
    """A figure as a read-only EvalMetric, an instance of the class `kind` to ``isinstance``.

    Its `name` is the one that Gluon's Estimator would give it, such as ``training accuracy``, because Gluon's
    handlers read that; `get` returns the figure's own name. `prefix` is "train" or "val"; `name` is the
    figure's name without it; `read` returns all figures of the stage by full name.
    """

    def __init__(self, prefix: str, name: str, read: Callable[[], Figures], kind: type) -> None:
        self.figure, self._read, self._kind = f"{prefix}_{name}", read, kind
        mx.metric.EvalMetric.__init__(self, f"{_GLUON_PREFIXES[prefix]} {name}")

    __class__ = property(lambda self: self._kind)

    def update(self, labels: Any, preds: Any) -> None:
        """Do nothing: the estimator updates its figures."""

    def reset(self) -> None:
        """Do nothing: the estimator resets its figures with each epoch."""

    reset_local = reset

    def get(self) -> tuple[Any, Any]:
        """Return name and value, or a list of each for a metric with several figures."""
        figures = self._read()
        parts = {name: value for name, value in figures.items() if name.startswith(self.figure + ".")}
        if parts and self.figure not in figures:
            return list(parts), list(parts.values())
        return self.figure, figures.get(self.figure, math.nan)

    get_global = get


def figure_metrics(
    prefix: str, figures: StageFigures, read: Callable[[], Mapping[str, float]]
) -> list[FigureMetric]:
    """Return a stage's metrics, then its objective, as EvalMetrics; `read` returns the figures."""
    kinds = [type(metric.metric) for metric in figures.metrics] + [mx.metric.Loss]
    return [FigureMetric(prefix, key, read, kind) for key, kind in zip(figures.metric_keys(), kinds)]


@contextmanager
def figures_in_handlers(
    handlers: Sequence[object], *stages: tuple[StageFigures, Sequence[FigureMetric]]
) -> Iterator[None]:
    """Let handlers of Gluon's classes read figures where they hold declared metrics, for a while.

    The figure has the value of the moment and the name that Gluon's handlers recognise, and is not updated
    twice; the metric itself may be summed on the device. `stages` are the figures of each, with what
    :func:`figure_metrics` returns for them. Raises ValueError if a handler logs a metric that nobody updates.
    """
    declared = [
        (metric.metric, figure) for stage, read in stages for metric, figure in zip(stage.metrics, read)
    ]
    figures = {id(metric): figure for metric, figure in declared}
    bare = [unwrapped(handler) for handler in handlers]
    replaced: list[tuple[object, str, Any]] = []
    for handler in bare:
        for name in ("metrics", "monitor") if isinstance(handler, _GLUONS.EventHandler) else ():
            held = getattr(handler, name, None)
            several = held if isinstance(held, list) else [held]
            if any(id(metric) in figures for metric in several):
                shown = [figures.get(id(metric), metric) for metric in several]
                replaced.append((handler, name, held))
                setattr(handler, name, shown if isinstance(held, list) else shown[0])
    try:
        _check_logged(bare, [metric for metric, _ in declared])
        yield
    finally:
        for handler, name, held in replaced:
            setattr(handler, name, held)


def _check_logged(handlers: Sequence[object], declared: Sequence[object]) -> None:
    logging = [handler for handler in handlers if isinstance(handler, _GLUONS.LoggingHandler)]
    others = [handler for handler in handlers if handler not in logging] + list(declared)
    for handler in logging:
        for metric in handler.metrics:
            if type(metric) is not FigureMetric and not any(_holds(other, metric) for other in others):
                raise ValueError(
                    f'{handler_name(handler)}: nothing updates its metric "{metric.name}"; declare it in the '
                    "TaskSpec, take one of estimator.train_metrics and val_metrics, or add a handler that "
                    "updates it, such as Gluon's MetricHandler"
                )


def _holds(owner: object, metric: Any) -> bool:
    """Whether an attribute is the metric, or a list with it, as handlers and composites have."""
    values = getattr(owner, "__dict__", {}).values()
    return any(
        value is metric or (isinstance(value, list) and any(each is metric for each in value))
        for value in values
    )


class BatchProcessor:
    """Trains on single batches and evaluates them, as Gluon's class of that name, by the estimator's methods.

    Other than Gluon's, `fit_batch` also updates the parameters.
    """

    def fit_batch(self, estimator: Any, train_batch: Any, batch_axis: int = 0) -> tuple[Any, ...]:
        """Return data, label, pred and loss of a batch, after training on it."""
        return _arrays(estimator.fit_batch(train_batch))

    def evaluate_batch(self, estimator: Any, val_batch: Any, batch_axis: int = 0) -> tuple[Any, ...]:
        """Return data, label, pred and loss of a batch, after measuring it."""
        return _arrays(estimator.evaluate_batch(val_batch))


def _arrays(result: StepResult) -> tuple[Any, ...]:
    data = {name: [slots[name] for slots in result.batch.slots] for name in result.spec.inputs}
    views = {"data": next(iter(data.values())) if len(data) == 1 else data, **result.views()}
    return tuple(views[name] for name in ("data", "label", "pred", "loss"))


def single_loss(spec: TaskSpec) -> Any:
    """Return the function of the one loss, or a dict of the losses' functions."""
    losses = {term.key: term.spec.fn for term in spec.terms}
    return next(iter(losses.values())) if len(losses) == 1 else losses


class _SeveralTrainers:
    """Several trainers as one, with the attributes of the first; it saves all states to one file."""

    def __init__(self, trainers: Mapping[str, Trainer]) -> None:
        self._trainers = dict(trainers)

    def __getattr__(self, name: str) -> Any:
        return getattr(next(iter(self._trainers.values())), name)

    def save_states(self, fname: str) -> None:
        """Save every trainer's states to a zip archive with a file for each."""
        with (
            atomic_path(fname) as path,
            tempfile.TemporaryDirectory() as folder,
            ZipFile(path, "w") as archive,
        ):
            for i, (name, trainer) in enumerate(self._trainers.items()):
                path_of_states = os.path.join(folder, str(i))  # a trainer's name may not be valid for a file
                trainer.save_states(path_of_states)
                archive.write(path_of_states, name)

    def load_states(self, fname: str) -> None:
        """Load what :meth:`save_states` saved."""
        with tempfile.TemporaryDirectory() as folder, ZipFile(fname) as archive:
            for i, (name, trainer) in enumerate(self._trainers.items()):
                path_of_states = os.path.join(folder, str(i))
                with open(path_of_states, "wb") as file:
                    file.write(archive.read(name))
                trainer.load_states(path_of_states)


def single_trainer(trainers: Mapping[str, Trainer]) -> Any:
    """Return the one trainer, or a stand-in for several."""
    return next(iter(trainers.values())) if len(trainers) == 1 else _SeveralTrainers(trainers)
