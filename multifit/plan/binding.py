"""Binding the declarations of one stage to the arrays of a batch."""

from __future__ import annotations

from typing import Any, Iterable, Iterator, Mapping, Sequence

from ..checks import describe
from ..spec import Declarations
from ..spec.links import FEEDS, Link, links, targets
from ..spec.summary import bound_text, call_text, carried_text, divisor_text, loss_text
from ..spec.terms import MetricTerm, Term
from .stage import Row, StagePlan


def stage_plan(
    declarations: Declarations,
    outputs: Mapping[str, Any],
    slots: Mapping[str, Any],
    parts: Mapping[str, Any],
    metrics: Iterable[tuple[str, Sequence[str], str]],
    how: str,
) -> StagePlan:
    """Bind a stage's declarations to the arrays of the first device, by name.

    `outputs` are the net's outputs, `slots` the batch's, and `parts` what the losses returned. `metrics` has,
    for each metric of the stage, its key, the names of its figures, and how it is computed. `how` says what
    was traced.
    """
    measured = {key: (figures, done) for key, figures, done in metrics}
    arrows = tuple(links(declarations, measured))
    arrays = [
        *(("input", name, slots.get(name)) for name in declarations.inputs),
        *(("output", name, outputs.get(name)) for name in declarations.output_names),
        *(("label", name, slots.get(name)) for name in declarations.labels),
    ]
    metric_terms = {metric.key: metric for metric in declarations.metric_terms}
    rows = [Row(what, name, describe.array(value), _goes(arrows, what, name)) for what, name, value in arrays]
    rows = [_with_missing(_with_state(row, declarations), declarations) for row in rows]
    rows += [row for term in declarations.terms for row in _loss_rows(term, parts)]
    rows += [_metric_row(metric_terms[key], *values) for key, values in measured.items()]
    return StagePlan(tuple(rows), how, arrows)


def _goes(arrows: Iterable[Link], what: str, name: str) -> str:
    goes = ["net"] if what == "input" else []
    for link in targets(arrows, what, name):
        goes.append(link.target if link.how == FEEDS else f"normalizes {link.target}")
    return ", ".join(dict.fromkeys(goes)) or "unused"


def _with_state(row: Row, declarations: Declarations) -> Row:
    """Add to the row of a state where it comes from and where it goes."""
    if row.what == "input":
        return row._replace(goes_to=row.goes_to + carried_text(declarations, row.name))
    if row.what == "output" and row.name in declarations.state:
        goes = "" if row.goes_to == "unused" else f"{row.goes_to}, "
        return row._replace(goes_to=f"{goes}the next batch")
    return row


def _with_missing(row: Row, declarations: Declarations) -> Row:
    """Add to the row of a label where it is missing."""
    label = declarations.label_specs.get(row.name) if row.what == "label" else None
    if label is None or label.missing is None:
        return row
    return row._replace(goes_to=f"{row.goes_to}; missing: {label.missing}")


def _loss_rows(term: Term, parts: Mapping[str, Any]) -> Iterator[Row]:
    computed = f"{loss_text(term)} / {divisor_text(term)}{bound_text(term)}"
    yield Row("loss", term.key, describe.array(parts.get(term.key)), computed)
    for i, part in enumerate(name for name in term.parts if name):
        name = f"{term.key}.{part}"
        role = "minimized" if i == term.minimized else "measured"
        yield Row("part", name, describe.array(parts.get(name)), role)


def _metric_row(metric: MetricTerm, figures: Sequence[str], how: str) -> Row:
    call = call_text(metric.spec.metric, [*metric.args, *metric.losses])
    short = ", ".join(figure[len(metric.key) + 1 :] or metric.key for figure in figures)
    return Row("metric", metric.key, short, f"{call}, {how}")
