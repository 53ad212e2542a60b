"""Metrics of one stage: stock ones are read from sums on the device, others are updated batch by batch."""

from __future__ import annotations

import math
from typing import Any, Mapping, Sequence

import numpy as np

from ...checks import positional
from ...errors import Problem, counted
from ...spec.names import Ref, listed
from ...spec.terms import MetricTerm
from .. import metrics as devices
from ..compat import mx
from ..data.arrays import to_numpy
from ..user_code import user_code

__all__ = ["StageMetric", "as_metric", "takes_preds"]


def as_metric(term: MetricTerm) -> Any:
    """Return the term's EvalMetric; a function is wrapped in one."""
    if isinstance(term.spec.metric, mx.metric.EvalMetric) or hasattr(term.spec.metric, "update"):
        return term.spec.metric
    return _FunctionMetric(term.spec.metric, term.key)


def takes_preds(metric: Any) -> bool:
    """Whether `update` has the stock signature ``(labels, preds)``."""
    taken = positional(metric.update)
    return taken is None or (len(taken[0]) > 1 and taken[0][1] == "preds")


class _FunctionMetric(mx.metric.EvalMetric):
    """The mean over batches of ``function(labels, outputs)`` on NumPy arrays."""

    def __init__(self, function: Any, name: str) -> None:
        super().__init__(name)
        self._function = function

    def update(self, labels: Sequence[Any], preds: Sequence[Any]) -> None:
        """Call the function with one array each, or with lists of them where several are named."""
        found = [[to_numpy(array) for array in arrays] for arrays in (labels, preds)]
        value = float(self._function(*[arrays[0] if len(arrays) == 1 else arrays for arrays in found]))
        self.sum_metric += value
        self.num_inst += 1


class StageMetric:
    """One metric in one stage."""

    def __init__(self, term: MetricTerm, metric: Any) -> None:
        self.term, self.metric = term, metric
        self.stock = takes_preds(metric)
        self.on_device = False
        self.settled = False  # whether `on_device` was decided already, in the run that goes on
        self.fed = False

    def renew(self) -> None:
        """Forget everything that was measured, and how: batches may have other shapes now."""
        self.reset()
        self.on_device = self.settled = False

    def reset(self) -> None:
        """Forget everything that was measured."""
        with user_code(lambda: f"{self.term.where}.reset"):
            self.metric.reset()
        self.fed = False

    def update(self, arrays: Sequence[Mapping[Ref, Any]], parts: Sequence[Mapping[str, Any]]) -> None:
        """Update the metric itself with lists per device; most metrics wait for the engine here."""
        term = self.term
        columns = [[device[ref] for device in arrays] for ref in term.args]
        outputs = [c for ref, c in zip(term.args, columns) if ref.space == "outputs"]
        outputs += [[device[name] for device in parts] for name in term.losses]
        labels = [c for ref, c in zip(term.args, columns) if ref.space != "outputs"]
        with user_code(lambda: f"{term.where}.update", *((str(r), c[0]) for r, c in zip(term.args, columns))):
            if term.spec.transform is not None:
                self._update_transformed(columns + outputs[len(term.outputs) :] if term.losses else columns)
            elif not self.stock:
                self.metric.update(*(columns if term.spec.arguments is not None else [*outputs, *labels]))
            elif isinstance(self.metric, _FunctionMetric):
                self.metric.update([_joined(c) for c in labels], [_joined(c) for c in outputs])
            else:
                self.metric.update([a for column in labels for a in column], [a for c in outputs for a in c])
        self.fed = True

    def _update_transformed(self, columns: Sequence[Sequence[Any]]) -> None:
        devices_values = []
        for device in zip(*columns):
            values = self.term.spec.transform(*device)  # type: ignore[misc]
            devices_values.append(values if isinstance(values, (list, tuple)) else (values,))
        taken = [list(values) for values in zip(*devices_values)]
        if isinstance(self.metric, _FunctionMetric):
            taken = [[_joined(column)] for column in taken]
        self.metric.update(*taken)

    def figures(self) -> dict[str, float]:
        """Return the metric's figures by name; NaN where nothing was measured."""
        names, values = self._got()
        if len(names) == 1 and not listed(self.term.spec.names):
            return {self.term.key: values[0]}
        return {f"{self.term.key}.{name}": value for name, value in zip(names, values)}

    def problem(self) -> Problem | None:
        """Return what is wrong with the names of the figures, once the metric was fed."""
        declared = listed(self.term.spec.names)
        names, values = self._got()
        if len(names) == len(values):
            return None
        way = f"names= gives {len(declared)}" if declared else "give names=[...], one for each"
        found = f"{type(self.metric).__name__} returns {counted(len(values), 'figure')}"
        return Problem("spec", f"{self.term.where}: {found}; {way}")

    def names(self) -> list[str]:
        """Return the names of its figures."""
        return list(self.figures())

    def _got(self) -> tuple[list[str], list[float]]:
        declared = list(listed(self.term.spec.names)) or devices.figure_names(self.metric) or []
        if not self.fed:
            return declared or [self.term.key], [math.nan] * max(len(declared), 1)
        with user_code(lambda: f"{self.term.where}.get"):
            names, values = _told(self.metric.get())
        names = declared or names or ([self.term.key] if len(values) == 1 else [])
        return names, values


def _told(got: Any) -> tuple[list[str], list[float]]:
    """Return the names and values that a metric's ``get()`` returned: one, several, or bare values.

    Bare values, without names, are what gluoncv's SegmentationMetric returns.
    """
    names, values = got if isinstance(got, (list, tuple)) and len(got) == 2 else ((), got)
    names = [names] if isinstance(names, str) else names
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        names, values = (), got
    return list(names), [float(value) for value in np.atleast_1d(values)]


def _joined(column: Sequence[Any]) -> np.ndarray:
    return np.concatenate([to_numpy(array) for array in column])
