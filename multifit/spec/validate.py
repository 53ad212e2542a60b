"""What can be wrong with the single declarations of a TaskSpec, whatever they are routed to."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Iterator

from ..arguments import is_finite_number
from ..errors import Problem, names, shown, suggest
from .names import OUTPUTS, leaves, listed
from .terms import MetricTerm, Term

if TYPE_CHECKING:
    from .task import TaskSpec

__all__ = ["problems_of", "weight_problem"]

STAGES = ("train", "evaluate")
SCOPES = ("device", "batch")
MODES = ("min", "max")


def problems_of(spec: TaskSpec) -> list[Problem]:
    """Return what is wrong with names that stand twice, losses, metrics and functions."""
    messages = [
        *_twice(spec),
        *(message for term in spec.terms for message in _loss(term)),
        *(message for metric in spec.metric_terms for message in _metric(metric)),
        *_functions(spec),
        *_never_measured(spec),
        *_collisions(spec),
    ]
    return [Problem("spec", message) for message in messages]


def weight_problem(where: str, weight: Any) -> str | None:
    """Return what is wrong with a loss's weight, or None."""
    if callable(weight):
        return None
    if is_finite_number(weight) and weight >= 0:
        return None
    valid = "a finite number of at least 0, or a function of the state"
    return f"{where}: the weight is {shown(weight)}; it must be {valid}"


def _twice(spec: TaskSpec) -> Iterator[str]:
    outputs = [name for _, name in leaves(spec.outputs)]
    for what, declared in (("outputs", outputs), ("labels", spec.labels), ("inputs", spec.inputs)):
        for name, count in Counter(n for n in declared if n is not Ellipsis).items():
            if count > 1:
                yield f'{what}: "{name}" is declared {count} times; give each its own name'


def _loss(term: Term) -> Iterator[str]:
    loss, where = term.spec, term.where
    if isinstance(loss.fn, type):
        yield f"{where}: {loss.fn.__name__} is a class; give an instance: {loss.fn.__name__}()"
    elif loss.fn is not None and not callable(loss.fn):
        yield f"{where}: {shown(loss.fn)} cannot be called; give a gluon loss, a Block or a function"
    if loss.fn is None and len(term.args) > 1:
        named = ", ".join(map(str, term.args))
        yield f"{where}: with fn=None one output is the loss itself, but {len(term.args)} are named: {named}"
    if term.args and not any(ref.space == OUTPUTS for ref in term.args):
        yield f"{where}: takes no output of the net, so there is nothing to train; name one with outputs="
    problem = weight_problem(where, loss.weight)
    if problem:
        yield problem
    yield from _strings(where, "returns", loss.returns)
    if loss.minimize is not None and not (
        isinstance(loss.minimize, str) and loss.minimize and loss.minimize in term.parts
    ):
        yield _minimize(where, loss.minimize, [part for part in term.parts if part])
    if not isinstance(loss.scope, str) or loss.scope not in SCOPES:
        yield f"{where}: scope is {shown(loss.scope)}{suggest(loss.scope, SCOPES)}; valid are {names(SCOPES)}"
    if loss.normalize_by is not None and loss.scope == "batch":
        yield f'{where}: with scope="batch" the loss is taken as normalised already; leave normalize_by out'


def _minimize(where: str, minimize: Any, parts: list[str]) -> str:
    way = (
        f"returns names {names(parts)}; name one of these"
        if parts
        else f"returns is not given; name what the loss returns: returns=[{shown(minimize)}, ...]"
    )
    return f"{where}: minimize is {shown(minimize)}{suggest(minimize, parts)}, but {way}"


def _metric(metric: MetricTerm) -> Iterator[str]:
    spec, where = metric.spec, metric.where
    if isinstance(spec.metric, type):
        yield f"{where}: {spec.metric.__name__} is a class; give an instance: {spec.metric.__name__}()"
    elif not callable(spec.metric) and not all(
        callable(getattr(spec.metric, method, None)) for method in ("update", "reset", "get")
    ):
        yield (
            f"{where}: {shown(spec.metric)} is no metric; give an EvalMetric, such as mx.metric.Accuracy(), "
            "or a function (labels, outputs) -> float"
        )
    if spec.transform is not None and not callable(spec.transform):
        yield f"{where}: transform: {shown(spec.transform)} cannot be called; give a function"
    if spec.mode is not None and not (isinstance(spec.mode, str) and spec.mode in MODES):
        yield f"{where}: mode is {shown(spec.mode)}{suggest(spec.mode, MODES)}; valid are {names(MODES)}"
    yield from _strings(where, "names", spec.names)
    for stage in listed(spec.stage) or (None,):
        if not isinstance(stage, str) or stage not in STAGES:
            yield f"{where}: stage is {shown(stage)}{suggest(stage, STAGES)}; valid are {names(STAGES)}"


def _strings(where: str, what: str, value: Any) -> Iterator[str]:
    items = listed(value)
    for item in items:
        if not isinstance(item, str) or not item:
            yield f"{where}: {what} holds {shown(item)}; give a list of strings that are not empty"
    for item, count in Counter(item for item in items if isinstance(item, str)).items():
        if count > 1:
            yield f'{where}: {what} names "{item}" {count} times; give each its own name'


def _functions(spec: TaskSpec) -> Iterator[str]:
    for what in ("forward", "batch_fn"):
        value = getattr(spec, what)
        if value is not None and not callable(value):
            yield f"{what}: {shown(value)} cannot be called; give a function"
    evaluate: Any = spec.evaluate
    if evaluate is not None and not isinstance(evaluate, type(spec)):
        yield f"evaluate: {shown(evaluate)} is no TaskSpec; give the TaskSpec for evaluating and predicting"
    elif evaluate is not None and evaluate.evaluate is not None:
        yield "evaluate: the TaskSpec for evaluating has an evaluate= of its own; leave that one out"
    if spec.name is not None and not isinstance(spec.name, str):
        yield f"name: {shown(spec.name)} is no string"


def _never_measured(spec: TaskSpec) -> Iterator[str]:
    for metric in spec.metric_terms if spec.evaluate is not None else ():
        if listed(metric.spec.stage) == ("evaluate",):
            yield (
                f'{metric.where}: is for stage="evaluate", where the TaskSpec in evaluate= takes the place '
                "of this one; declare the metric there"
            )


def _collisions(spec: TaskSpec) -> Iterator[str]:
    bearers: dict[str, list[str]] = {"loss": ["the objective"]} if spec.terms else {}
    for term in spec.terms:
        for figure in dict.fromkeys(term.figures):
            bearers.setdefault(figure, []).append(term.where)
    for metric in spec.metric_terms:
        figures = [f"{metric.key}.{name}" for name in listed(metric.spec.names)] or [metric.key]
        for figure in dict.fromkeys(figures):
            bearers.setdefault(figure, []).append(metric.where)
    for figure, owners in bearers.items():
        if len(owners) > 1:
            yield f'the figure "{figure}" would be borne by {" and ".join(owners)}; rename one of them'
