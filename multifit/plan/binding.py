"""What a spec says of one stage, bound to what was really found."""

from __future__ import annotations

from typing import Any, Iterable, Iterator, Mapping

from ..checks import describe
from ..spec import TaskSpec
from ..spec.names import OUTPUTS, SLOTS, Ref
from ..spec.summary import describe_weight
from ..spec.terms import MetricTerm, Term
from .plan import Link, Row, StagePlan

__all__ = ["stage_plan"]


def stage_plan(
    spec: TaskSpec, outputs: Mapping[str, Any], slots: Mapping[str, Any], parts: Mapping[str, Any],
    metrics: Iterable[tuple[str, str, str]], how: str,
) -> StagePlan:  # fmt: skip
    """Describe a stage.

    Parameters
    ----------
    spec : TaskSpec
        The declarations.
    outputs, slots, parts : mapping of str to array
        What was found on the first device: the net's outputs, the batch's slots, what the losses returned.
    metrics : iterable of (key, figures, how)
        The stage's metrics.
    how : str
        What was traced.
    """
    found = list(metrics)
    measured = {key for key, _, _ in found}
    terms: list[Term | MetricTerm] = [*spec.terms, *(m for m in spec.metric_terms if m.key in measured)]
    rows: list[Row] = [("input", name, describe.array(slots.get(name)), "net") for name in spec.inputs]
    rows += [
        ("output", name, describe.array(outputs[name]), _takers(terms, Ref(OUTPUTS, name)))
        for name in spec.output_names
    ]
    rows += [
        ("label", name, describe.array(slots.get(name)), _takers(terms, Ref(SLOTS, name)))
        for name in spec.labels
    ]
    rows += [row for term in spec.terms for row in _loss_rows(term, parts)]
    named = {metric.key: metric for metric in spec.metric_terms}
    rows += [_metric_row(named[key], figures, done) for key, figures, done in found]
    return StagePlan(tuple(rows), how, tuple(_links(spec, terms)))


def _links(spec: TaskSpec, terms: Iterable[Term | MetricTerm]) -> Iterator[Link]:
    for term in terms:
        to = ("loss" if isinstance(term, Term) else "metric", term.key)
        for ref in term.args:
            yield (_space(spec, ref), ref.name, *to, "feeds")
        if isinstance(term, MetricTerm):
            for figure in term.losses:
                yield ("loss", _loss_of(spec, figure), *to, "feeds")
        elif isinstance(term.spec.normalize_by, str):
            slot = Ref(SLOTS, term.spec.normalize_by)
            yield (_space(spec, slot), slot.name, *to, "normalises")


def _space(spec: TaskSpec, ref: Ref) -> str:
    if ref.space == OUTPUTS:
        return "output"
    return "label" if ref.name in spec.labels else "input"  # a loss may take an input as if it were a label


def _loss_of(spec: TaskSpec, figure: str) -> str:
    return next(term.key for term in spec.terms if figure in term.figures)


def _loss_rows(term: Term, parts: Mapping[str, Any]) -> Iterator[Row]:
    called = _called(term.spec.fn, term.args)
    goes = f"{describe_weight(term.spec.weight)} x {called} / {_normalizer(term)}"
    yield "loss", term.key, describe.array(parts.get(term.key)), goes
    for i, part in enumerate(name for name in term.parts if name):
        name = f"{term.key}.{part}"
        goal = "minimised" if i == term.minimized else "measured"
        yield "part", name, describe.array(parts.get(name)), goal


def _normalizer(term: Term) -> str:
    by = term.spec.normalize_by
    if term.spec.scope == "batch":
        return "the batch"
    return by if isinstance(by, str) else "a function of the slots" if by is not None else "samples"


def _metric_row(metric: MetricTerm, figures: str, done: str) -> Row:
    return (
        "metric",
        metric.key,
        figures,
        f"{_called(metric.spec.metric, [*metric.args, *metric.losses])}, {done}",
    )


def _takers(terms: Iterable[Term | MetricTerm], ref: Ref) -> str:
    takers = []
    for term in terms:
        if ref in term.args:
            takers.append(term.where)
        if isinstance(term, Term) and ref.space == SLOTS and term.spec.normalize_by == ref.name:
            takers.append(f"normalises {term.where}")
    return ", ".join(takers) or "unused"


def _called(fn: Any, args: Iterable[object]) -> str:
    name = "the output" if fn is None else getattr(fn, "__name__", type(fn).__name__)
    return f"{name}({', '.join(str(arg) for arg in args)})"
