"""The figures of all ranks together, at the end of a pass over data."""

from __future__ import annotations

import math
from functools import reduce
from operator import add
from typing import Iterable, Mapping, Sequence

import numpy as np

from ...distributed import World
from ..metrics.metric_sums import Totals
from ..metrics.stage_figures import StageFigures, WrongLabels
from ..metrics.stage_metric import Place


def join_figures(world: World, figures: StageFigures) -> None:
    """Replace a stage's figures by those of all ranks together, the same everywhere; waits for the engine.

    Sums are added up in the order of the ranks. The figures of a metric that each rank has updated by itself,
    with its own samples, are the mean of the ranks', weighted by their numbers of samples.
    """
    if world.alone:
        return
    own, wrong = figures.totals()
    alone = _measured_alone(figures) if own.samples else {}
    names = [list(part) for part in (own.sums, own.norms, own.weighted)]
    facts = world.gather_json([own.samples, names, wrong, alone], "the figures")
    numbers = [*own.norms.values(), *own.weighted.values()]
    vectors = [*own.sums.values(), *(np.array([number]) for number in numbers)]
    arrays = world.gather_arrays(vectors, "the figures")
    every = [_totals(fact[0], fact[1], values) for fact, values in zip(facts, arrays)]
    measured = [totals for totals in every if totals.samples]
    if measured:
        joined = figures.figures_of(reduce(add, measured), _joined_labels(fact[2] for fact in facts))
        means = _means([fact[3] for fact in facts], [totals.samples for totals in every])
        figures.replace(_with_means(figures, joined, means))


def _totals(samples: int, names: Sequence[Sequence[str]], values: Sequence[np.ndarray]) -> Totals:
    vectors = iter(values)
    sums, norms, weighted = ({name: next(vectors) for name in part} for part in names)
    return Totals(
        samples,
        sums,
        {name: float(value[0]) for name, value in norms.items()},
        {name: float(value[0]) for name, value in weighted.items()},
    )


def _joined_labels(ranks: Iterable[WrongLabels]) -> WrongLabels:
    joined: dict[str, tuple[int, int]] = {}
    for wrong in ranks:
        for key, (count, first) in wrong.items():
            before, earliest = joined.get(key, (0, first))
            joined[key] = before + count, min(earliest, first)
    return joined


def _measured_alone(figures: StageFigures) -> dict[str, dict[str, float]]:
    """Return the figures of the metrics that only this rank's samples have updated, by metric."""
    return {
        metric.term.key: metric.figures()
        for metric in figures.metrics
        if metric.place is Place.HOST and not metric.is_exact and metric.measured
    }


def _with_means(
    figures: StageFigures, joined: Mapping[str, float], means: Mapping[str, Mapping[str, float]]
) -> dict[str, float]:
    """Return figures with the means, by metric, in their places; this rank may not have known the names."""
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


def _means(
    ranks: Sequence[Mapping[str, Mapping[str, float]]], samples: Sequence[int]
) -> dict[str, dict[str, float]]:
    """Return the means over the ranks that have a figure; NaN does not count unless it is all there is."""
    means: dict[str, dict[str, float]] = {}
    names = dict.fromkeys((key, name) for own in ranks for key, figures in own.items() for name in figures)
    for key, name in names:
        values = [own.get(key, {}).get(name, math.nan) for own in ranks]
        pairs = [(value, count) for value, count in zip(values, samples) if not math.isnan(value)]
        total = sum(count for _, count in pairs)
        mean = sum(value * count for value, count in pairs) / total if total else math.nan
        means.setdefault(key, {})[name] = mean
    return means
