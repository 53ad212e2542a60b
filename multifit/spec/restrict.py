"""A spec of some of its tasks."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ..errors import Problem, quoted, raise_problems, shown, suggest
from .names import LABELS, LOSSES, OUTPUTS, Ref
from .specs import LabelSpec
from .terms import Declared, MetricTerm, Taker, Term, changed, slots_of


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
    ours, theirs = set[Ref](), set[Ref]()  # the metrics of other parts are left out anyway
    for each in (spec, spec.evaluate or spec):
        for term in (term for term in each.terms if _part(spec, term.key) in parts):
            (ours if term.key in kept else theirs).update(_takes(each, term))

    def stays(each: Any, taker: Taker) -> bool:
        if isinstance(taker, Term):
            return taker.key in kept
        return _part(each, taker.key) in parts and (theirs - ours).isdisjoint(_takes(each, taker))

    def of(each: Any) -> Any:
        takers = [taker for taker in each.takers if stays(each, taker)]
        terms = tuple(taker for taker in takers if isinstance(taker, Term))
        metrics = tuple(taker for taker in takers if isinstance(taker, MetricTerm))
        used = {str(ref) for taker in takers for ref in _takes(each, taker)}
        names = [f"{OUTPUTS}.{name}" for name in each.output_names if name not in each.state]
        names += [f"{LABELS}.{name}" for name in each.labels if name not in each.inputs]
        labels = {n: v if f"{LABELS}.{n}" in used else LabelSpec(n) for n, v in each.label_specs.items()}
        return changed(
            each,
            losses=MappingProxyType({term.key: each.losses[term.key] for term in terms}),
            metrics=MappingProxyType({metric.key: each.metrics[metric.key] for metric in metrics}),
            terms=terms,
            metric_terms=metrics,
            label_specs=MappingProxyType(labels),
            unused=(*each.unused, *(name for name in names if name not in used and name not in each.unused)),
            parts={part: slots for part, slots in each.parts.items() if part in parts},
            restricted=True,
        )

    return changed(of(spec), evaluate=spec.evaluate and of(spec.evaluate))  # type: ignore[no-any-return]


def _takes(spec: Any, taker: Taker) -> Iterator[Ref]:
    """Yield the outputs, labels and losses that are a loss's or metric's own; an input is no task's."""
    yield from taker.outputs
    yield from (Ref(LABELS, name) for name in slots_of(spec, taker) if name not in spec.inputs)
    yield from (Ref(LOSSES, name) for name in getattr(taker, "figures", getattr(taker, "losses", ())))


def _part(spec: Any, key: str) -> str:
    """Return the part of a combined spec that a loss or metric belongs to, "" without parts."""
    return next((part for part in spec.parts if key.startswith(f"{part}/")), "")
