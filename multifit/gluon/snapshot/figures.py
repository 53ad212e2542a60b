"""The figures of a stage: its sums on the devices, and the state of its metrics."""

from __future__ import annotations

from typing import Any, Mapping

from ..metrics.stage_figures import StageFigures
from ..metrics.stage_metric import Place, StageMetric
from .attributes import class_name, fill, remembered, stable_name

__all__ = ["load_stage_state", "stage_state"]


def stage_state(figures: StageFigures, lost: list[str] | None = None) -> dict[str, Any]:
    """Return what a stage has measured since its last reset, as a tree.

    The tree refers to the stage's arrays: write it, or load it elsewhere, before the next batch.

    Parameters
    ----------
    figures : StageFigures
        Of training or evaluating.
    lost : list of str, optional
        The keys of metrics whose state cannot be saved are appended; they restart from zero.
    """
    metrics = {metric.term.key: _metric_state(metric) for metric in figures.metrics}
    if lost is not None:
        lost += [key for key, state in metrics.items() if state["metric"] is None and not state["on_device"]]
    names = {metric.term.key: metric.names for metric in figures.metrics}
    return {"tally": figures.sums.state(), "known": names, "measures": metrics}


def load_stage_state(figures: StageFigures, state: Mapping[str, Any]) -> None:
    """Restore what :func:`stage_state` returned into a stage that was just reset.

    Raises
    ------
    ValueError
        A metric is of another class than the one that was saved.
    """
    for metric in figures.metrics:
        key = metric.term.key
        if key in state["measures"]:
            _load_metric(metric, state["measures"][key])
        if key in state["known"]:
            metric.names = state["known"][key]
    figures.sums.load(state["tally"])


def _metric_state(metric: StageMetric) -> dict[str, Any]:
    attributes = None
    lost: list[str] = []
    on_device = metric.place is Place.DEVICE
    # what is summed on the device is loaded into the metric whenever its figure is read
    if not on_device and hasattr(metric.metric, "__dict__"):
        attributes = remembered(metric.metric, metric.term.key, lost)
    attributes = None if lost else attributes
    return {
        "class": class_name(metric.metric),
        "metric": attributes,
        "on_device": on_device,
        "settled": metric.place is not Place.UNDECIDED,
        "fed": metric.measured and (on_device or attributes is not None),
    }


def _load_metric(metric: StageMetric, state: Mapping[str, Any]) -> None:
    kind, where = class_name(metric.metric), metric.term.where
    if stable_name(state["class"]) != kind:
        raise ValueError(f"{where}: the state is of a {state['class']}, the metric is a {kind}")
    if state["metric"] is not None:
        fill(metric.metric, state["metric"], where)
    decided = Place.DEVICE if state["on_device"] else Place.HOST
    metric.place = decided if state["settled"] else Place.UNDECIDED
    metric.measured = state["fed"]
