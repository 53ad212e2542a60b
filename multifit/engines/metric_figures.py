"""Metrics as declared, in each stage, and the names and values of their figures."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..spec import MetricSpec, TaskSpec
from ..spec.parsing import coverage, is_missable, presence
from ..spec.plan import function_name
from ..spec.terms import LABELS, MetricTerm, Ref, listed
from ..utils.errors import CLEAR, Problem, SpecError, raise_problems
from ..utils.signatures import arity_problem
from ..utils.stages import EVALUATE, STAGES
from ..utils.text import counted, last_line
from . import scikit
from .kept_arrays import KeptArrays

TORCH_METRICS = "torchmetrics.metric.Metric", "torchmetrics.collections.MetricCollection"


def metrics_of_stages(
    spec: TaskSpec, made: Callable[[MetricTerm, TaskSpec], Any], of_presence: Callable[[MetricTerm], Any]
) -> dict[str, list[Any]]:
    """Return each stage's metrics, as ``made(term, spec)`` makes them; raises SpecError with all problems.

    ``of_presence(term)`` makes those that say how much of a label is present.
    """
    metrics: dict[str, list[Any]] = {}
    problems: list[Problem] = []
    for name, declared in zip(STAGES, (spec, spec.evaluation)):
        metrics[name] = []
        for term in declared.metric_terms:
            if name in listed(term.spec.stage) or (name == EVALUATE and spec.evaluate is not None):
                try:
                    metrics[name].append(made(term, declared))
                except SpecError as error:
                    problems += error.problems
        for label in (name for name, each in declared.label_specs.items() if is_missable(each)):
            refs = (Ref(LABELS, presence(label)),)
            metrics[name].append(of_presence(MetricTerm(coverage(label), MetricSpec("coverage"), refs)))
    raise_problems(problems)
    return metrics


def function_of(term: MetricTerm) -> Callable[..., Any] | None:
    """Return the function of the whole pass that a term declares, or names; None for any other metric.

    Raises SpecError for an unknown name, and for weights of a metric that is not a function.
    """
    metric: Any = term.spec.metric
    if isinstance(metric, str) and metric.startswith(scikit.PREFIX):
        return scikit.named_function(term.where, metric)
    if not isinstance(metric, str) and not hasattr(metric, "update"):
        function: Callable[..., Any] = metric
        return function
    if term.spec.sample_weight is not None:
        raise SpecError(
            f"{term.where}: sample_weight is passed to functions, and {function_name(metric)} is none; give "
            'one that takes it, such as "sklearn.accuracy_score" or "sklearn.mean_squared_error"'
        )
    return None


def function_arity_problem(term: MetricTerm) -> str | None:
    """Return what is wrong with the number of arguments of a metric that is a function, or None."""
    weights = [] if term.spec.sample_weight is None else ["sample_weight"]
    fix = " and ".join(["take both, in that order", *weights])
    names, function = ["labels", "outputs"], function_of(term)
    return arity_problem(term.where, function, names, fix=fix, keywords=weights) if function else None


def weighted_means(ranks: Sequence[Mapping[str, tuple[float, float]]]) -> dict[str, float]:
    """Return the means of figures over the ranks that have them, which are given with their weights.

    NaN is left out, unless all values are NaN.
    """
    means: dict[str, float] = {}
    for name in dict.fromkeys(name for figures in ranks for name in figures):
        pairs = [figures[name] for figures in ranks if not math.isnan(figures.get(name, (math.nan, 0))[0])]
        total = sum(weight for _, weight in pairs)
        means[name] = sum(value * weight for value, weight in pairs) / total if total else math.nan
    return means


def is_torchmetrics(metric: Any) -> bool:
    """Whether a metric is one of torchmetrics, or a collection of these."""
    return any(f"{kind.__module__}.{kind.__name__}" in TORCH_METRICS for kind in type(metric).__mro__)


class MetricFigures(ABC):
    """The names and values of the figures of a `metric`, which is declared as `term`.

    `measured` says whether something was measured since the last reset. `is_whole` says whether the figures
    are computed from the whole pass, of which arrays may be `kept`; the metric itself is otherwise updated
    batch by batch.
    """

    is_whole: bool
    kept: KeptArrays

    def __init__(self, term: MetricTerm, metric: Any) -> None:
        self.term, self.metric, self.measured = term, metric, False
        self._names: list[str] | None = None
        self._warned = False

    def could_compute(self, compute: Callable[[], object], complete: bool) -> bool:
        """Compute a function of the pass so far; return whether it could be computed.

        Unless the pass is `complete`, it may raise ValueError, because the samples are too few.
        """
        try:
            compute()
            return True
        except ValueError as error:
            if complete or isinstance(error, CLEAR):
                raise
            if self._warned:
                return False
            self._warned = True
            logging.getLogger("multifit").warning(
                "%s cannot be computed from the batches so far (%s); it is computed again at the end of the "
                "pass", self.term.where, last_line(error),
            )  # fmt: skip
            return False

    def restart(self, optional: frozenset[str] = frozenset()) -> None:
        """Discard everything measured; names of figures may change, and batches may lack `optional` slots."""
        self.reset()
        self.term = replace(self.term, optional=optional)
        self._names, self._warned = None, False

    @abstractmethod
    def reset(self) -> None:
        """Discard everything measured."""

    @abstractmethod
    def own_names(self) -> Sequence[str]:
        """Return the names of the metric's figures; empty if only the metric knows which it has."""

    @abstractmethod
    def result(self) -> Any:
        """Return what it has computed: a value, a name and a value, lists of these, or unnamed values."""

    @property
    def names(self) -> list[str]:
        """The names of its figures; some metrics know them only once they have measured something."""
        if self.measured or self._names is None:
            self._names = list(self.figures())
        return self._names

    @names.setter
    def names(self, names: Sequence[str]) -> None:
        self._names = list(names)

    def figures(self) -> dict[str, float]:
        """Return its figures by name; NaN if nothing was measured since the last reset."""
        if self._names is not None and not self.measured:
            return dict.fromkeys(self._names, math.nan)
        names, values = self._read()
        if len(names) == 1 and not listed(self.term.spec.names):
            return {self.term.key: values[0]}
        return {f"{self.term.key}.{name}": value for name, value in zip(names, values)}

    @abstractmethod
    def weighed(self, samples: int) -> dict[str, tuple[float, float]]:
        """Return its figures with their weights in a mean over ranks, of which this one has `samples`."""

    def problem(self) -> Problem | None:
        """Return the problem with the figures' names, if there is one; needs a measured batch."""
        declared, metric = listed(self.term.spec.names), function_name(self.term.spec.metric)
        names, values = self._read()
        repeated = next((name for name in names if names.count(name) > 1), None)
        if repeated is not None:
            message = f'{metric} returns two figures named "{repeated}"'
            return Problem("spec", f"{self.term.where}: {message}; give names=[...], one for each")
        if len(names) == len(values):
            return None
        hint = f"names= gives {len(declared)}" if declared else "give names=[...], one for each"
        returned = f"{metric} returns {counted(len(values), 'figure')}"
        return Problem("spec", f"{self.term.where}: {returned}; {hint}")

    # ---- checkpoints

    def state(self) -> dict[str, Any]:
        """Return what was measured; "own" is the state of a metric that is updated batch by batch."""
        # a metric of the whole pass has no state of its own: it is computed when it is read
        own: Any = None if self.is_whole else self.metric
        has_state = all(hasattr(own, name) for name in ("state_dict", "load_state_dict"))
        return {
            "names": self.names,
            "own": own.state_dict() if has_state else None,
            "kept": self.kept.state() if len(self.kept) else None,
            "measured": self.measured,
        }

    def load(self, state: Mapping[str, Any], divisible: bool) -> bool:
        """Load what :meth:`state` returned into a metric that was just reset; return whether that is lost."""
        self.names = state["names"]
        self._add_kept(state)
        if self.is_whole or not state["measured"]:
            return False
        if state["own"] is None or not (divisible or getattr(self.metric, "is_divisible", False)):
            return True
        self.metric.load_state_dict(state["own"])
        self.measured = True
        return False

    def merge(self, state: Mapping[str, Any]) -> None:
        """Add what :meth:`state` returned in another process, if that can be added."""
        self._add_kept(state)

    def _add_kept(self, state: Mapping[str, Any]) -> None:
        if state["kept"] is not None:
            self.kept.merge(state["kept"])

    def _read(self) -> tuple[list[str], list[float]]:
        declared = list(listed(self.term.spec.names) or self.own_names())
        if not self.measured:
            return declared or [self.term.key], [math.nan] * max(len(declared), 1)
        names, values = _names_and_values(self.result())
        return declared or names or ([self.term.key] if len(values) == 1 else []), values


def _names_and_values(result: Any) -> tuple[list[str], list[float]]:
    """Split what a metric has computed; gluoncv's SegmentationMetric returns values without names."""
    names, values = result if isinstance(result, (list, tuple)) and len(result) == 2 else ((), result)
    names = [names] if isinstance(names, str) else names
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        names, values = (), result
    return list(names), [float(value) for value in np.atleast_1d(values)]
