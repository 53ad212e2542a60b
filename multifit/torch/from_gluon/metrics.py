"""Metrics of MXNet as metrics on tensors."""

from __future__ import annotations

from ...errors import Problem
from ...spec import TaskSpec
from ...spec.terms import MetricTerm


def converted_metrics(spec: TaskSpec, problems: list[Problem]) -> tuple[MetricTerm, ...]:
    return spec.metric_terms
