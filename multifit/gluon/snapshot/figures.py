"""Save and load the figures of a stage: its sums on the devices, and the state of its metrics."""

from collections.abc import Mapping
from typing import Any

from ..metrics.stage_figures import StageFigures
from ..metrics.stage_metric import Place, StageMetric


def save_figures(figures: StageFigures) -> dict[str, Any]:
    """Return what a stage has measured since its last reset, as a tree.

    The tree refers to the stage's arrays: write it, or load it elsewhere, before the next batch.
    """
    return {
        "tally": figures.sums.state(),
        "metrics": {metric.term.key: _save_metric(metric) for metric in figures.metrics},
        "means": [means.state() for means in figures.means],
    }


def load_figures(figures: StageFigures, state: Mapping[str, Any], divisible: bool = True) -> list[str]:
    """Load what :func:`save_figures` returned into a stage that was just reset.

    Returns the keys of the metrics that had measured something, and start from zero: those that are updated
    batch by batch and have no `state_dict`, or all of them if the state is to be divided among ranks and so
    not `divisible`.
    """
    lost = []
    for metric in figures.metrics:
        saved = state["metrics"][metric.term.key]
        metric.names = saved["names"]
        metric.place = Place(saved["place"])
        _merge_kept(metric, saved)
        if metric.is_whole:
            metric.measured = saved["measured"]
        elif saved["measured"] and saved["own"] is not None and divisible:
            metric.metric.load_state_dict(saved["own"])
            metric.measured = True
        elif saved["measured"]:
            lost.append(metric.term.key)
    figures.sums.load(state["tally"])
    for means, saved_means in zip(figures.means, state["means"]):
        means.load(saved_means)
    return lost


def merge_figures(figures: StageFigures, state: Mapping[str, Any]) -> None:
    """Add what :func:`save_figures` returned in another process to what a stage has measured.

    Metrics that are updated batch by batch cannot be added.
    """
    figures.sums.merge(state["tally"])
    for metric in figures.metrics:
        _merge_kept(metric, state["metrics"][metric.term.key])


def _save_metric(metric: StageMetric) -> dict[str, Any]:
    # a metric of the whole pass has no state of its own: it is computed when it is read
    inner: Any = None if metric.is_whole else metric.metric
    has_state = hasattr(inner, "state_dict") and hasattr(inner, "load_state_dict")
    return {
        "names": metric.names,
        "own": inner.state_dict() if has_state else None,
        "kept": metric.kept.state() if len(metric.kept) else None,
        "place": metric.place.value,
        "measured": metric.measured,
    }


def _merge_kept(metric: StageMetric, state: Mapping[str, Any]) -> None:
    if state["kept"] is not None:
        metric.kept.merge(state["kept"])
        metric.keeps = True
