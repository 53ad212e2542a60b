"""How a TaskSpec shows itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterable

from ..tables import UNLIMITED, table
from .names import Ref

if TYPE_CHECKING:
    from .task import TaskSpec

__all__ = ["one_line", "summary"]


def one_line(spec: TaskSpec) -> str:
    """Return the declarations in one line: inputs, outputs, losses and metrics."""
    parts = [f"{', '.join(spec.inputs)} -> {_tree(spec.outputs)[1:-1]}"]
    parts += [
        f"{what} {', '.join(items)}"
        for what, items in (("losses", spec.losses), ("metrics", spec.metrics))
        if items
    ]
    name = f"{spec.name}: " if spec.name else ""
    return f"TaskSpec({name}{'; '.join(parts)})"


def summary(spec: TaskSpec) -> str:
    """Return a table: a line for each input, output, label, loss and metric, and where it goes."""
    rows: list[tuple[str, str, str]] = [("input", name, "net") for name in spec.inputs]
    rows += [("output", name, _takers(spec, Ref("outputs", name))) for name in spec.output_names]
    rows += [("label", name, _takers(spec, Ref("labels", name))) for name in spec.labels]
    rows += [("loss", term.key, _loss(term)) for term in spec.terms]
    rows += [("metric", metric.key, _metric(metric)) for metric in spec.metric_terms]
    text = table(("what", "name", "where it goes, what it takes"), rows, UNLIMITED)
    title = f"TaskSpec {spec.name}\n" if spec.name else ""
    if spec.evaluate is not None:
        text += "\n\nwhen evaluating and predicting:\n" + summary(spec.evaluate)
    return title + text


def describe_weight(weight: Any) -> str:
    """Return a weight as text; a function by its name."""
    return (
        getattr(weight, "__name__", type(weight).__name__) + "(state)" if callable(weight) else f"{weight:g}"
    )


def _takers(spec: TaskSpec, ref: Ref) -> str:
    takers = [term.where for term in spec.takers if ref in term.args]
    takers += [
        f"normalizer of {t.where}"
        for t in spec.terms
        if ref.space == "labels" and t.spec.normalize_by == ref.name
    ]
    return ", ".join(takers) or "unused"


def _loss(term: Any) -> str:
    spec = term.spec
    by = (
        f" / {spec.normalize_by}"
        if isinstance(spec.normalize_by, str)
        else " / a function of the slots"
        if spec.normalize_by
        else ""
    )
    parts = f" -> {', '.join(term.parts)}; minimizes {term.parts[term.minimized]}" if spec.returns else ""
    return f"{describe_weight(spec.weight)} x {_called(spec.fn, term.args)}{by}{parts}"


def _metric(metric: Any) -> str:
    stages = metric.spec.stage if isinstance(metric.spec.stage, str) else ", ".join(metric.spec.stage)
    return f"{_called(metric.spec.metric, [*metric.args, *metric.losses])} ({stages})"


def _called(fn: Any, args: Iterable[object]) -> str:
    name = "the output" if fn is None else getattr(fn, "__name__", type(fn).__name__)
    return f"{name}({', '.join(str(arg) for arg in args)})"


def _tree(tree: Any) -> str:
    if isinstance(tree, tuple):
        return "(" + ", ".join(_tree(item) for item in tree) + ")"
    return "..." if tree is Ellipsis else str(tree)
