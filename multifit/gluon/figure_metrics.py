"""Figures as metrics of Gluon, for handlers that were written for Gluon's Estimator."""

from __future__ import annotations

import math
from contextlib import contextmanager
from functools import partial
from typing import Any, Callable, Iterator, Mapping, Sequence

from ..events import handler_name, unwrapped
from ..stages import PREFIXES, figure_name
from .compat import mx
from .engine import Engine

_GLUONS = mx.gluon.contrib.estimator.event_handler
_GLUON_PREFIXES = {"train": "training", "val": "validation"}


class FigureMetric(mx.metric.EvalMetric):
    """A figure as a read-only EvalMetric, which ``isinstance`` takes for an instance of the class `kind`.

    The attribute `name` is the name that Gluon's Estimator would give it, such as ``training accuracy``,
    because Gluon's handlers read that; `get` returns the figure's own name. The argument `prefix` is "train"
    or "val", `name` is the figure's name without prefix, and `read` returns all figures of the stage by full
    name.
    """

    def __init__(self, prefix: str, name: str, read: Callable[[], Mapping[str, float]], kind: type) -> None:
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


def figure_metrics(engine: Engine, stage: str) -> list[FigureMetric]:
    """Return a stage's metrics, then its objective, as EvalMetrics with the current figures."""
    figures = engine.stages[stage].figures
    kinds = [type(metric.metric) for metric in figures.metrics] + [mx.metric.Loss]
    read = partial(_read, engine, stage)
    return [FigureMetric(PREFIXES[stage], key, read, kind) for key, kind in zip(figures.metric_keys(), kinds)]


@contextmanager
def figures_in_handlers(engine: Engine, handlers: Sequence[object]) -> Iterator[None]:
    """Within the block, replace the declared metrics in handlers of Gluon's classes by figures.

    A figure has the current value, although the metric itself may be summed on the device; it has the name
    that Gluon's handlers recognise, and is not updated twice. Raises ValueError if a handler logs a metric
    that nothing updates.
    """
    declared = [
        (metric.metric, figure)
        for name, stage in engine.stages.items()
        for metric, figure in zip(stage.figures.metrics, figure_metrics(engine, name))
    ]
    figures = {id(metric): figure for metric, figure in declared}
    bare = [unwrapped(handler) for handler in handlers]
    replaced: list[tuple[object, str, Any]] = []
    for handler in bare:
        for name in ("metrics", "monitor") if isinstance(handler, _GLUONS.EventHandler) else ():
            value = getattr(handler, name, None)
            several = value if isinstance(value, list) else [value]
            if any(id(metric) in figures for metric in several):
                shown = [figures.get(id(metric), metric) for metric in several]
                replaced.append((handler, name, value))
                setattr(handler, name, shown if isinstance(value, list) else shown[0])
    try:
        _check_logged(bare, [metric for metric, _ in declared])
        yield
    finally:
        for handler, name, value in replaced:
            setattr(handler, name, value)


def _read(engine: Engine, stage: str) -> dict[str, float]:
    return {figure_name(stage, name): value for name, value in engine.stages[stage].figures.read().items()}


def _check_logged(handlers: Sequence[object], declared: Sequence[object]) -> None:
    logging = [handler for handler in handlers if isinstance(handler, _GLUONS.LoggingHandler)]
    others = [handler for handler in handlers if handler not in logging] + list(declared)
    for handler in logging:
        for metric in handler.metrics:
            if type(metric) is not FigureMetric and not any(_has_metric(other, metric) for other in others):
                raise ValueError(
                    f'{handler_name(handler)}: nothing updates its metric "{metric.name}"; declare it in the '
                    "TaskSpec, take one of estimator.train_metrics and val_metrics, or add a handler that "
                    "updates it, such as Gluon's MetricHandler"
                )


def _has_metric(owner: object, metric: Any) -> bool:
    """Whether an attribute of an object is the metric, or a list that contains it."""
    values = getattr(owner, "__dict__", {}).values()
    return any(
        value is metric or (isinstance(value, list) and any(each is metric for each in value))
        for value in values
    )
