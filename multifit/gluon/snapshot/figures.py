"""Save and load the figures of a stage: its sums on the devices, and the state of its metrics."""

from __future__ import annotations

from typing import Any, Mapping

from ..metrics.stage_figures import StageFigures
from ..metrics.stage_metric import Place, StageMetric
from .attributes import class_name, load_attributes, save_attributes


def save_figures(figures: StageFigures) -> dict[str, Any]:
    """Return what a stage has measured since its last reset, as a tree.

    ``lost`` in the tree are the keys of metrics whose state cannot be saved; they start from zero after a
    resume. The tree refers to the stage's arrays: write it, or load it elsewhere, before the next batch.
    """
    figures.fetch()
    metrics = {metric.term.key: _save_metric(metric) for metric in figures.metrics}
    return {
        "tally": figures.sums.state(),
        "labels": figures.labels.state(),
        "classes": dict(figures.constant_classes),
        "known": {metric.term.key: metric.names for metric in figures.metrics},
        "measures": metrics,
        "means": [means.state() for means in figures.means],
        "lost": [
            metric.term.key
            for metric in figures.metrics
            if not metric.is_whole and metrics[metric.term.key]["metric"] is None
        ],
    }


def load_figures(figures: StageFigures, state: Mapping[str, Any]) -> None:
    """Load what :func:`save_figures` returned into a stage that was just reset.

    Raises ValueError if a metric is not of the class that was saved.
    """
    for metric in figures.metrics:
        key = metric.term.key
        if key in state["measures"]:
            _load_metric(metric, state["measures"][key])
        if key in state["known"]:
            metric.names = state["known"][key]
    figures.sums.load(state["tally"])
    figures.labels.load(state["labels"])
    figures.constant_classes.update(state["classes"])
    for means, saved in zip(figures.means, state["means"]):
        means.load(saved)


def merge_figures(figures: StageFigures, state: Mapping[str, Any]) -> None:
    """Add what :func:`save_figures` returned in another process to what a stage has measured.

    Metrics that are updated batch by batch cannot be added; see :func:`empty_undivided`.
    """
    figures.sums.merge(state["tally"])
    figures.labels.merge(state["labels"])
    for metric in figures.metrics:
        _merge_kept(metric, state["measures"][metric.term.key])


def empty_undivided(figures: StageFigures, state: Mapping[str, Any]) -> list[str]:
    """Empty the saved metrics with which a different number of processes cannot continue.

    `state` is what :func:`save_figures` returned. These metrics are those that are updated batch by batch.
    Returns the keys of those that held something.
    """
    emptied = []
    for metric in figures.metrics:
        saved = state["measures"].get(metric.term.key, {})
        if not metric.is_whole and saved.get("fed"):
            emptied.append(metric.term.key)
            saved.update(metric=None, fed=False)
    return emptied


def _save_metric(metric: StageMetric) -> dict[str, Any]:
    attributes = None
    unsaved: list[str] = []
    # a metric of the whole pass needs no attributes: it is computed when it is read
    if not metric.is_whole and hasattr(metric.metric, "__dict__"):
        attributes = save_attributes(metric.metric, metric.term.key, unsaved)
    attributes = None if unsaved else attributes
    return {
        "class": class_name(metric.metric),
        "metric": attributes,
        "kept": metric.kept.state() if len(metric.kept) else None,
        "on_device": metric.place is Place.DEVICE,
        "settled": metric.place is not Place.UNDECIDED,
        "fed": metric.measured and (metric.is_whole or attributes is not None),
    }


def _load_metric(metric: StageMetric, state: Mapping[str, Any]) -> None:
    kind, where = class_name(metric.metric), metric.term.where
    if state["class"] != kind:
        raise ValueError(f"{where}: the state is of a {state['class']}, the metric is a {kind}")
    if state["metric"] is not None:
        load_attributes(metric.metric, state["metric"], where)
    _merge_kept(metric, state)
    decided = Place.DEVICE if state["on_device"] else Place.HOST
    metric.place = decided if state["settled"] else Place.UNDECIDED
    metric.measured = state["fed"]


def _merge_kept(metric: StageMetric, state: Mapping[str, Any]) -> None:
    if state.get("kept") is not None:
        metric.kept.merge(state["kept"])
        metric.keeps = True
