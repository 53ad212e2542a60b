"""Showing declarations as text."""

from __future__ import annotations

from typing import Any, Iterable, NamedTuple

from ..tables import table
from .declarations import Declarations
from .links import FEEDS, Link, links, targets
from .names import Tree
from .terms import MatchedAnchors, MetricTerm, Term


class SummaryRow(NamedTuple):
    """One line of a summary."""

    what: str  # "input", "output", "label", "loss" or "metric"
    name: str
    text: str  # where an array goes, or how a loss or metric is computed


def summary_rows(declarations: Declarations) -> list[SummaryRow]:
    """Return a row for each input, output, label, loss and metric; `evaluate` is left out."""
    arrows = list(links(declarations))
    return [
        *(
            SummaryRow("input", name, f"net{carried_text(declarations, name)}")
            for name in declarations.inputs
        ),
        *(SummaryRow("output", n, _targets_text(arrows, "output", n)) for n in declarations.output_names),
        *(SummaryRow("label", name, _targets_text(arrows, "label", name)) for name in declarations.labels),
        *(SummaryRow("loss", term.key, _loss_row_text(term)) for term in declarations.terms),
        *(SummaryRow("metric", metric.key, _metric_text(metric)) for metric in declarations.metric_terms),
    ]


def summary(declarations: Declarations, width: int | None = None) -> str:
    """Return the declarations as a table that fits `width`, by default the terminal's."""
    title = f"TaskSpec {declarations.name}\n" if declarations.name else ""
    text = table(
        ("what", "name", "where it goes, what it takes"), summary_rows(declarations), width, wrap_last=True
    )
    if declarations.evaluate is not None:
        text += "\n\nwhen evaluating and predicting:\n" + summary(declarations.evaluate, width)
    return title + text


def one_line(declarations: Declarations) -> str:
    """Return inputs, outputs, losses and metrics in one line."""
    parts = [f"{', '.join(declarations.inputs)} -> {_tree_text(declarations.outputs)[1:-1]}"]
    parts += [
        f"{what} {', '.join(items)}"
        for what, items in (("losses", declarations.losses), ("metrics", declarations.metrics))
        if items
    ]
    name = f"{declarations.name}: " if declarations.name else ""
    return f"TaskSpec({name}{'; '.join(parts)})"


def loss_text(term: Term) -> str:
    """Return a loss's weight and call, such as ``0.5 x L2Loss(outputs.a, labels.a)``."""
    weight = term.spec.weight
    factor = f"{function_name(weight)}(state)" if callable(weight) else f"{weight:g}"
    return f"{factor} x {call_text(term.spec.fn, term.args)}"


def carried_text(declarations: Declarations, name: str) -> str:
    """Return the text on where a slot of the state comes from, to append to its row; "" for other slots."""
    return f'; the output "{name}" of the previous batch' if name in declarations.state else ""


def bound_text(term: Term) -> str:
    """Return the text on the trainers that a loss is bound to, to append to its text; "" if to none."""
    return f", trains {', '.join(term.trainers)}" if term.trainers else ""


def divisor_text(term: Term) -> str:
    """Return what divides a loss."""
    by = term.spec.normalize_by
    if by is None:
        return "samples present" if term.present else "samples"
    if isinstance(by, MatchedAnchors):
        return "matched anchors"
    return by if isinstance(by, str) else "a function of the slots"


def call_text(fn: Any, args: Iterable[object]) -> str:
    """Return the text of a call, such as ``L2Loss(outputs.a, labels.a)``; None as `fn` is "the output"."""
    name = "the output" if fn is None else function_name(fn)
    return f"{name}({', '.join(map(str, args))})"


def _targets_text(arrows: Iterable[Link], what: str, name: str) -> str:
    shown = []
    for link in targets(arrows, what, name):
        target = f'{"losses" if link.to == "loss" else "metrics"}["{link.target}"]'
        shown.append(target if link.how == FEEDS else f"normalizer of {target}")
    return ", ".join(shown) or "unused"


def _loss_row_text(term: Term) -> str:
    divisor = "" if term.spec.normalize_by is None else f" / {divisor_text(term)}"
    minimized = term.parts[term.minimized]
    parts = f" -> {', '.join(term.parts)}; minimizes {minimized}" if term.spec.returns else ""
    return f"{loss_text(term)}{divisor}{parts}{bound_text(term)}"


def _metric_text(metric: MetricTerm) -> str:
    stages = metric.spec.stage if isinstance(metric.spec.stage, str) else ", ".join(metric.spec.stage)
    return f"{call_text(metric.spec.metric, [*metric.args, *metric.losses])} ({stages})"


def function_name(fn: Any) -> str:
    """Return the name of a function, or of an object's class; the name of a metric stays as it is."""
    return fn if isinstance(fn, str) else str(getattr(fn, "__name__", type(fn).__name__))


def _tree_text(tree: Tree) -> str:
    if isinstance(tree, tuple):
        return "(" + ", ".join(_tree_text(item) for item in tree) + ")"
    return "..." if tree is Ellipsis else str(tree)
