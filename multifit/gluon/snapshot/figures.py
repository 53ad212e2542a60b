"""The figures of a stage: its sums on the devices, and what its metrics remember."""

from __future__ import annotations

from typing import Any, Mapping

from ..metrics.stage_metric import StageMetric
from .attributes import class_name, fill, remembered, stable_name

__all__ = ["load_stage_state", "stage_state"]


def stage_state(stage: Any, lost: list[str] | None = None) -> dict[str, Any]:
    """Return what a stage has measured since its last reset, as a tree.

    The arrays in it are the stage's own: write it, or load it elsewhere, before the next batch.

    Parameters
    ----------
    stage : Stage
        Training or evaluating.
    lost : list of str, optional
        Grows by the keys of metrics that keep what cannot be saved: they begin anew.
    """
    decided = stage.program is not None
    measures = {measure.term.key: _measure_state(measure, decided) for measure in stage.measures}
    if lost is not None:
        lost += [key for key, state in measures.items() if state["metric"] is None and not state["on_device"]]
    return {"tally": stage.tally.state(), "known": dict(stage.known), "measures": measures}


def load_stage_state(stage: Any, state: Mapping[str, Any]) -> None:
    """Let a stage that was just reset go on from what :func:`stage_state` returned.

    Raises
    ------
    ValueError
        A metric is of another class than the one that was saved.
    """
    for measure in stage.measures:
        key = measure.term.key
        if key in state["measures"]:
            _load_measure(measure, state["measures"][key])
    stage.tally.load(state["tally"])
    stage.known.update(state["known"])


def _measure_state(measure: StageMetric, decided: bool) -> dict[str, Any]:
    lost: list[str] = []
    metric = None
    # what is summed on the device is loaded into the metric whenever its figure is read
    if not measure.on_device and hasattr(measure.metric, "__dict__"):
        metric = remembered(measure.metric, measure.term.key, lost)
    metric = None if lost else metric
    return {
        "class": class_name(measure.metric),
        "metric": metric,
        "on_device": measure.on_device,
        "settled": measure.settled or decided,
        "fed": measure.fed and (measure.on_device or metric is not None),
    }


def _load_measure(measure: StageMetric, state: Mapping[str, Any]) -> None:
    kind, where = class_name(measure.metric), measure.term.where
    if stable_name(state["class"]) != kind:
        raise ValueError(f"{where}: the state is a {state['class']}'s, the metric is a {kind}")
    if state["metric"] is not None:
        fill(measure.metric, state["metric"], where)
    measure.on_device, measure.settled, measure.fed = state["on_device"], state["settled"], state["fed"]
