"""Metrics that are functions of NumPy arrays."""

from __future__ import annotations

from typing import Any, Sequence

from ...errors import SpecError, quoted, shown, suggest
from ...spec.terms import MetricTerm
from ..compat import mx
from .binary_accuracy import BinaryAccuracy

# names in MXNet's registry that are of no use without an instance
_UNNAMED = {"caffe", "torch", "custom", "custommetric", "composite", "compositeevalmetric"}


def as_metric(term: MetricTerm) -> Any:
    """Return the term's EvalMetric: a new one for a name, and for a function one that calls it.

    Raises SpecError if there is no metric of that name, or if it has options that must be given.
    """
    if isinstance(term.spec.metric, str):
        return _named_metric(term.where, term.spec.metric)
    if isinstance(term.spec.metric, mx.metric.EvalMetric) or hasattr(term.spec.metric, "update"):
        return term.spec.metric
    return _FunctionMetric(term.spec.metric, term.key)


def _named_metric(where: str, name: str) -> Any:
    kinds = {**mx.registry.get_registry(mx.metric.EvalMetric), "binary_accuracy": BinaryAccuracy}
    kind = kinds.get(name.lower())
    if kind is None:
        valid = sorted(set(kinds) - _UNNAMED)
        raise SpecError(
            f"{where}: there is no metric {shown(name)}{suggest(name, valid)}; valid are {quoted(valid)}"
        )
    try:
        return kind()
    except (AssertionError, TypeError) as error:
        instance = f"mx.metric.{kind.__name__}(...)"
        raise SpecError(f"{where}: {shown(name)} needs options ({error}); give {instance}") from error


def is_function(metric: Any) -> bool:
    """Whether :func:`as_metric` made a metric from a function."""
    return isinstance(metric, _FunctionMetric)


class _FunctionMetric(mx.metric.EvalMetric):
    """The value of ``function(labels, outputs)``, which gets the NumPy arrays of a whole pass."""

    def __init__(self, function: Any, name: str) -> None:
        super().__init__(name)
        self._function = function

    def update(self, labels: Sequence[Any], preds: Sequence[Any]) -> None:
        """Call the function with one array each, or with lists of arrays if several are named."""
        value = self._function(*[arrays[0] if len(arrays) == 1 else arrays for arrays in (labels, preds)])
        try:
            self.sum_metric, self.num_inst = float(value), 1
        except (OverflowError, TypeError, ValueError):
            found = f"its function returned {shown(value)}; it must return a number"
            raise SpecError(f'metrics["{self.name}"]: {found}') from None
