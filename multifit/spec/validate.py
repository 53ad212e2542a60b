"""What can be wrong with a TaskSpec by itself, without a net or data."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any, Iterable, Iterator, Sequence

from ..errors import Problem, names, suggest
from .names import OUTPUTS, SLOTS, Ref, leaves, listed, resolve
from .terms import MetricTerm, Term

if TYPE_CHECKING:
    from .task import TaskSpec

__all__ = ["problems_of", "weight_problem"]

STAGES = ("train", "evaluate")
SCOPES = ("device", "batch")


def problems_of(spec: TaskSpec) -> list[Problem]:
    """Return everything that is wrong with the declarations, apart from unresolved names in losses and metrics."""
    messages = [
        *_names(spec),
        *_batch(spec),
        *(message for term in spec.terms for message in _loss(spec, term)),
        *(message for metric in spec.metric_terms for message in _metric(metric)),
        *_functions(spec),
        *_unknown_unused(spec),
        *_collisions(spec),
        *_unused(spec),
    ]
    return [Problem("spec", message) for message in messages]


def weight_problem(where: str, weight: Any) -> str | None:
    """Return what is wrong with a loss's weight, or None."""
    if callable(weight):
        return None
    try:
        valid = math.isfinite(weight) and weight >= 0
    except TypeError:
        valid = False
    if valid and not isinstance(weight, bool):
        return None
    return f"{where}: the weight is {weight!r}; it must be a finite number of at least 0, or a function of the state"


def _names(spec: TaskSpec) -> Iterator[str]:
    groups = {
        "outputs": [name for _, name in leaves(spec.outputs)],
        "labels": spec.labels,
        "inputs": spec.inputs,
    }
    for what, declared in groups.items():
        for i, name in enumerate(declared):
            if name is Ellipsis and what == "outputs":
                if i != len(declared) - 1 or spec.outputs[-1] is not Ellipsis:
                    yield 'outputs: "..." must be the last of all outputs; it ignores whatever the net returns after the named ones'
            elif not isinstance(name, str) or not name:
                yield f"{what}: {name!r} is not a name; names are strings that are not empty"
        for name, count in Counter(n for n in declared if isinstance(n, str)).items():
            if count > 1:
                yield f'{what}: "{name}" is declared {count} times; give each its own name'
    if not spec.output_names:
        yield "outputs: none is named; name at least one output of the net"
    for what, items in (("losses", spec.losses), ("metrics", spec.metrics)):
        for key in items:
            if not isinstance(key, str) or not key:
                yield f"{what}: {key!r} is not a name; names are strings that are not empty"


def _batch(spec: TaskSpec) -> Iterator[str]:
    batch, slots = spec.batch or (), spec.slot_names
    for name, count in Counter(batch).items():
        if count > 1:
            yield f'batch: "{name}" stands {count} times; every slot of a batch has its own name'
        if name not in slots and name not in spec.unused and f"{SLOTS}.{name}" not in spec.unused:
            yield (
                f'batch: "{name}" is neither an input nor a label{suggest(name, slots)}; declared are {names(slots)}; '
                "list it in unused= if nothing takes it"
            )
    for name in slots:
        if name not in batch:
            yield f'batch: the slot "{name}" is missing; batch= must name every input and label, it names {names(batch)}'


def _loss(spec: TaskSpec, term: Term) -> Iterator[str]:
    loss, where = term.spec, term.where
    if loss.fn is not None and not callable(loss.fn):
        yield f"{where}: fn is {loss.fn!r}, which cannot be called; give a gluon loss, a Block or a function"
    if loss.fn is None and len(term.args) > 1:
        yield f"{where}: with fn=None one output is the loss itself, but {len(term.args)} arguments are named"
    problem = weight_problem(where, loss.weight)
    if problem:
        yield problem
    parts = listed(loss.returns)
    if loss.minimize is not None and loss.minimize not in parts:
        yield (
            f'{where}: minimize is "{loss.minimize}"{suggest(loss.minimize, parts)}, '
            f"but returns names {names(parts)}; name one of these"
        )
    yield from (f'{where}: returns names "{part}" {n} times' for part, n in Counter(parts).items() if n > 1)
    if loss.scope not in SCOPES:
        yield f'{where}: scope is "{loss.scope}"{suggest(loss.scope, SCOPES)}; valid are {names(SCOPES)}'
    by = loss.normalize_by
    if by is not None and loss.scope == "batch":
        yield f'{where}: with scope="batch" the loss is taken as normalised already; leave normalize_by out'
    if by is not None and not callable(by):
        wrong = resolve(by, {SLOTS: spec.slot_names})[1]
        if wrong:
            yield f"{where}: normalize_by: {wrong}"


def _metric(metric: MetricTerm) -> Iterator[str]:
    spec, where = metric.spec, metric.where
    if not callable(spec.metric) and not callable(getattr(spec.metric, "update", None)):
        yield f"{where}: {spec.metric!r} is neither an EvalMetric nor a function (labels, outputs) -> float"
    if isinstance(spec.metric, type):
        yield f"{where}: {spec.metric.__name__} is a class; give an instance: {spec.metric.__name__}()"
    if spec.mode not in (None, "min", "max"):
        yield f'{where}: mode is {spec.mode!r}; valid are "min" and "max"'
    for stage in listed(spec.stage):
        if stage not in STAGES:
            yield f'{where}: there is no stage "{stage}"{suggest(stage, STAGES)}; valid are {names(STAGES)}'


def _functions(spec: TaskSpec) -> Iterator[str]:
    for what in ("forward", "batch_fn"):
        value = getattr(spec, what)
        if value is not None and not callable(value):
            yield f"{what}: {value!r} cannot be called; give a function"
    if spec.evaluate is not None and not _is_spec(spec.evaluate):
        yield f"evaluate: {spec.evaluate!r} is not a TaskSpec"
    elif spec.evaluate is not None and spec.evaluate.evaluate is not None:
        yield "evaluate: the TaskSpec for evaluating has an evaluate= of its own; leave that one out"


def _is_spec(value: Any) -> bool:
    return hasattr(value, "output_names") and hasattr(value, "terms")


def _unknown_unused(spec: TaskSpec) -> Iterator[str]:
    spaces = {OUTPUTS: spec.output_names, SLOTS: (*spec.slot_names, *(spec.batch or ()))}
    for name in spec.unused:
        wrong = resolve(name, spaces)[1]
        if wrong:
            yield f"unused: {wrong}"


def _collisions(spec: TaskSpec) -> Iterator[str]:
    bearers: dict[str, list[str]] = {"loss": ["the objective"]} if spec.terms else {}
    for term in spec.terms:
        for figure in term.figures:
            bearers.setdefault(figure, []).append(term.where)
    for metric in spec.metric_terms:
        for figure in [f"{metric.key}.{name}" for name in listed(metric.spec.names)] or [metric.key]:
            bearers.setdefault(figure, []).append(metric.where)
    for figure, owners in bearers.items():
        if len(owners) > 1:
            yield f'the figure "{figure}" would be borne by {" and ".join(owners)}; rename one of them'


def _unused(spec: TaskSpec) -> Iterator[str]:
    if not spec.terms and not spec.metric_terms:
        return  # nothing is routed at all: a spec for predicting
    used: set[Any] = {ref for term in (*spec.terms, *spec.metric_terms) for ref in term.args}
    used |= {
        Ref(SLOTS, term.spec.normalize_by) for term in spec.terms if isinstance(term.spec.normalize_by, str)
    }
    used |= {Ref(SLOTS, name) for name in spec.inputs}
    spared = _refs(spec.unused, spec)
    for space, declared in ((OUTPUTS, spec.output_names), (SLOTS, spec.labels)):
        for name in declared:
            if Ref(space, name) not in used and Ref(space, name) not in spared:
                yield (
                    f'the {space[:-1]} "{name}" is taken by no loss and no metric; '
                    f'route it, or list it: unused=["{name}"]'
                )


def _refs(listed_names: Iterable[str], spec: TaskSpec) -> set[Ref]:
    spaces: dict[str, Sequence[str]] = {OUTPUTS: spec.output_names, SLOTS: spec.slot_names}
    return {ref for name in listed_names for ref in resolve(name, spaces)[0]}
