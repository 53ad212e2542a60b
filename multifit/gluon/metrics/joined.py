"""Figures of all ranks: joined at the end of a pass, or measured on the arrays of all of them."""

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from ...distributed import World
from ...engines.kept_arrays import KeptArrays
from ...engines.metric_figures import weighted_means
from ...spec.terms import MetricTerm
from ...stages import TRAIN
from ..compat import mx
from ..data.arrays import new_array, to_numpy
from .host import Joining, Measured
from .stage_figures import StageFigures

Weighed = dict[str, tuple[float, float]]
"""Figures by name, and the weight of each."""


def join_figures(world: World, figures: StageFigures, ended: bool) -> None:
    """Replace a stage's figures by those of all ranks together, equal on all ranks; waits for the engine.

    Sums are added up in the order of the ranks, and kept arrays are joined batch by batch. While training,
    the figures of a metric that is not known are means over the ranks, weighted by what each rank's metric
    has counted, because each was updated with the samples of its rank only. A pass that has not `ended`, but
    was stopped, may go on after a resume.
    """
    figures.complete, figures.ended = True, ended
    if world.alone:
        return
    local = figures.totals()
    alone = _measured_alone(figures, local.samples) if local.samples else {}
    kept = {metric.term.key: metric.kept.state() for metric in figures.metrics if len(metric.kept)}
    ranks = world.gather((local, figures.rules, alone, kept))
    measured = [totals for totals, *_ in ranks if totals.samples]
    if measured:
        _, rules, means, arrays = zip(*ranks)
        for of_rank in rules:  # a batch may lack slots on some ranks
            figures.rules.update(of_rank)
        joined = figures.figures_of(reduce(add, measured), _joined_arrays(figures, arrays))
        keys = dict.fromkeys(key for of_rank in means for key in of_rank)
        by_metric = {key: weighted_means([each[key] for each in means if key in each]) for key in keys}
        figures.replace(_with_means(figures, joined, by_metric))
    figures.release()


def _joined_arrays(figures: StageFigures, ranks: Iterable[Mapping[str, Any]]) -> dict[str, KeptArrays]:
    """Return the kept arrays of all ranks by metric."""
    joined: dict[str, KeptArrays] = {}
    where = {metric.term.key: metric.term.where for metric in figures.metrics}
    for kept in ranks:
        for key, state in kept.items():
            joined.setdefault(key, KeptArrays(where[key])).merge(state)
    return joined


def _measured_alone(figures: StageFigures, samples: int) -> dict[str, Weighed]:
    """Return, by metric, the figures of the metrics that were updated with this rank's samples only."""
    measured: dict[str, Weighed] = {}
    for metric in figures.metrics:
        if not metric.is_whole and figures.stage == TRAIN and metric.measured:
            values = metric.figures()
            weights = _weights(metric.metric, len(values), samples)
            measured[metric.term.key] = dict(zip(values, zip(values.values(), weights)))
    return measured


def _weights(metric: Any, figures: int, samples: int) -> list[float]:
    """Return each figure's weight: what the metric has counted, or this rank's samples if it does not count.

    MXNet's metrics, and metrics derived from them, count samples, arrays or batches in `num_inst`.
    """
    if type(metric) is mx.metric.CompositeEvalMetric:
        return [w for part in metric.metrics for w in _weights(part, np.size(part.get()[1]), samples)]
    counted = getattr(metric, "num_inst", 0)
    return [float(counted if np.ndim(counted) == 0 and counted else samples)] * figures


def _with_means(
    figures: StageFigures, joined: Mapping[str, float], means: Mapping[str, Mapping[str, float]]
) -> dict[str, float]:
    """Return the figures, with each metric's means in place of its own, whose names may differ here."""
    keys = {
        name: metric.term.key
        for metric in figures.metrics
        if metric.term.key in means
        for name in metric.figures()
    }
    replaced: dict[str, float] = {}
    for name, value in joined.items():
        replaced.update(means[keys[name]] if name in keys else {name: value})
    return replaced


def gathered(world: World, terms: Sequence[MetricTerm], measured: Measured) -> Measured:
    """Return the outputs, slots and losses that some metrics take, of all ranks' devices, rank by rank."""
    refs = list(dict.fromkeys(ref for term in terms for ref in term.refs))
    losses = list(dict.fromkeys(name for term in terms for name in term.losses))
    local = [to_numpy(device[ref]) for device in measured.arrays for ref in refs]
    local += [to_numpy(device[name]) for device in measured.parts for name in losses]
    sizes: list[int] = []
    arrays: list[dict[Any, Any]] = []
    parts: list[dict[Any, Any]] = []
    for counts, values in world.gather((list(measured.joining.sizes), local)):
        split = len(counts) * len(refs)
        sizes += counts
        arrays += _by_device(len(counts), refs, values[:split])
        parts += _by_device(len(counts), losses, values[split:])
    return Measured(arrays, parts, Joining(sizes, measured.joining.axis))


def _by_device(devices: int, names: Sequence[Any], values: Sequence[np.ndarray]) -> list[dict[Any, Any]]:
    arrays = iter([new_array(value) for value in values])
    return [{name: next(arrays) for name in names} for _ in range(devices)]
