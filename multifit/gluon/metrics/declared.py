"""The metrics that a spec declares, stage by stage."""

from __future__ import annotations

from typing import Any

from ...errors import Problem, SpecError, raise_problems
from ...spec import MetricSpec, TaskSpec
from ...spec.missing import coverage, is_missable, presence
from ...spec.names import LABELS, Ref, listed
from ...spec.terms import MetricTerm
from ...stages import EVALUATE, STAGES
from ..compat import mx
from .copying import copy_metric
from .function_metric import as_metric
from .present import Coverage
from .stage_metric import StageMetric


def declared_metrics(spec: TaskSpec) -> dict[str, list[StageMetric]]:
    """Return each stage's metrics; an EvalMetric used twice is copied, so that its sums do not mix."""
    used: set[int] = set()
    metrics: dict[str, list[StageMetric]] = {}
    problems: list[Problem] = []
    for name, declared in zip(STAGES, (spec, spec.evaluation)):
        metrics[name] = []
        for term in declared.metric_terms:
            if name in listed(term.spec.stage) or (name == EVALUATE and spec.evaluate is not None):
                try:
                    metric = as_metric(term)
                except SpecError as error:
                    problems += error.problems
                    continue
                metric = copy_metric(metric) if used & _identities(metric) else metric
                used |= _identities(metric)
                metrics[name].append(StageMetric(term, metric))
        missable = [label for label, spec in declared.label_specs.items() if is_missable(spec)]
        metrics[name] += [_coverage(label) for label in missable]
    raise_problems(problems)
    return metrics


def _identities(metric: Any) -> set[int]:
    """Return the identities of a metric and of the metrics that it is composed of."""
    parts = metric.metrics if isinstance(metric, mx.metric.CompositeEvalMetric) else ()
    return {id(metric)}.union(*map(_identities, parts))


def _coverage(label: str) -> StageMetric:
    metric = Coverage()
    return StageMetric(
        MetricTerm(coverage(label), MetricSpec(metric), (Ref(LABELS, presence(label)),)), metric
    )
