"""A spec of some of its tasks."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ..utils.errors import Problem, raise_problems
from ..utils.text import quoted, shown, suggest
from .names import LABELS, LOSSES, OUTPUTS, Ref
from .specs import LabelSpec
from .terms import Declared, Taker, changed, slots_of


def restricted(
    spec: Declared, tasks: Sequence[str], groups: Mapping[str, Sequence[str]] | None = None
) -> Declared:
    """Return a spec of some tasks: losses, parts of a combined spec, or `groups` of losses by name.

    Raises SpecError for a task that there is not.
    """
    known: dict[str, Sequence[str]] = {loss: [loss] for loss in spec.losses}
    known |= {part: [loss for loss in spec.losses if _part(spec, loss) == part] for part in spec.parts}
    known |= groups or {}
    messages = [f"no task {shown(task)}{suggest(task, known)}" for task in tasks if task not in list(known)]
    messages += [] if tasks else ["no task is given"]
    raise_problems(Problem("spec", f"only: {each}; tasks are {quoted(known)}") for each in messages)
    kept = {loss for task in tasks for loss in known[task]}
    parts = {_part(spec, loss) for loss in kept}
    ours, theirs = set[Ref](), set[Ref]()  # taken by losses that are kept, and by others
    for each in (spec, spec.evaluate or spec):
        for term in each.terms:
            if _part(spec, term.key) in parts:
                (ours if term.key in kept else theirs).update(_takes(each, term))
    own = kept, parts, theirs - ours
    return changed(_restricted(spec, *own), evaluate=spec.evaluate and _restricted(spec.evaluate, *own))


def _restricted(spec: Declared, kept: set[str], parts: set[str], left_out: set[Ref]) -> Declared:
    """Return a spec of the losses `kept`, and of the metrics of `parts` that take nothing `left_out`."""
    terms = [term for term in spec.terms if term.key in kept]
    metrics = [
        metric
        for metric in spec.metric_terms
        if _part(spec, metric.key) in parts and left_out.isdisjoint(_takes(spec, metric))
    ]
    used = {str(ref) for taker in (*terms, *metrics) for ref in _takes(spec, taker)}
    names = [f"{OUTPUTS}.{name}" for name in spec.output_names if name not in spec.state]
    names += [f"{LABELS}.{name}" for name in spec.labels if name not in spec.inputs]
    unused = [name for name in names if name not in used and name not in spec.unused]
    labels = {n: v if f"{LABELS}.{n}" in used else LabelSpec(n) for n, v in spec.label_specs.items()}
    return changed(
        spec,
        losses=MappingProxyType({term.key: spec.losses[term.key] for term in terms}),
        metrics=MappingProxyType({metric.key: spec.metrics[metric.key] for metric in metrics}),
        terms=tuple(terms),
        metric_terms=tuple(metrics),
        label_specs=MappingProxyType(labels),
        unused=(*spec.unused, *unused),
        parts={part: slots for part, slots in spec.parts.items() if part in parts},
        restricted=True,
    )


def _takes(spec: Any, taker: Taker) -> Iterator[Ref]:
    """Yield the outputs, labels and losses that a loss or metric takes; inputs belong to no single task."""
    yield from taker.outputs
    yield from (Ref(LABELS, name) for name in slots_of(spec, taker) if name not in spec.inputs)
    yield from (Ref(LOSSES, name) for name in getattr(taker, "figures", getattr(taker, "losses", ())))


def _part(spec: Any, key: str) -> str:
    """Return the part of a combined spec that a loss or metric belongs to, "" without parts."""
    return next((part for part in spec.parts if key.startswith(f"{part}/")), "")
