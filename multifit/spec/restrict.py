"""A spec of some of its tasks."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from ..errors import Problem, quoted, raise_problems, shown, suggest
from .names import LABELS, OUTPUTS, Ref
from .specs import LabelSpec
from .terms import Declarations, Declared, Taker, Term, changed, slots_of


def restricted(
    spec: Declared, tasks: Sequence[str], groups: Mapping[str, Sequence[str]] | None = None
) -> Declared:
    """Return a spec of some tasks: losses, parts of a combined spec, or `groups` of losses by name.

    Raises SpecError for a task that there is not.
    """
    known: dict[str, Sequence[str]] = {loss: [loss] for loss in spec.losses}
    known |= {part: [loss for loss in spec.losses if _part(spec, loss) == part] for part in spec.parts}
    known |= groups or {}
    tasks = [name for task in tasks for name in (groups or {}).get(str(task), [task])]
    wrong = [task for task in tasks if not isinstance(task, str) or task not in known]
    messages = [f"there is no task {shown(task)}{suggest(task, known)}" for task in wrong]
    messages += [] if tasks else ["no task is given"]
    raise_problems(Problem("spec", f"only: {each}; tasks are {quoted(known)}") for each in messages)
    kept = {loss for task in tasks for loss in known[task]}
    terms = [(each, term) for each in (spec, spec.evaluate) if each for term in each.terms]
    ours = {ref for each, term in terms if term.key in kept for ref in _takes(each, term)}
    theirs = {ref for each, term in terms if term.key not in kept for ref in _takes(each, term)} - ours
    rule = _Rule(kept, {part for part in tasks if part in spec.parts}, theirs, set(spec.losses))
    evaluate = None if spec.evaluate is None else rule.applied(spec.evaluate)
    return changed(rule.applied(spec), evaluate=evaluate, restricted=True)


@dataclass(frozen=True)
class _Rule:
    """Which losses and metrics stay: `kept` losses, what whole `parts` declare, and nothing of `theirs`."""

    kept: set[str]
    parts: set[str]
    theirs: set[Ref]
    losses: set[str]  # all of training

    def applied(self, spec: Declared) -> Declared:
        takers = [taker for taker in spec.takers if self._stays(spec, taker)]
        terms = tuple(taker for taker in takers if isinstance(taker, Term))
        metrics = tuple(taker for taker in takers if not isinstance(taker, Term))
        used = {ref for taker in takers for ref in _takes(spec, taker)}
        names = [Ref(OUTPUTS, name) for name in spec.output_names if name not in spec.state]
        names += [Ref(LABELS, name) for name in spec.labels if name not in spec.inputs]
        labels = {
            name: label if Ref(LABELS, name) in used else LabelSpec(name)
            for name, label in spec.label_specs.items()
        }
        parts = self.parts | {_part(spec, loss) for loss in self.kept}
        return changed(
            spec,
            losses=MappingProxyType({term.key: spec.losses[term.key] for term in terms}),
            metrics=MappingProxyType({metric.key: spec.metrics[metric.key] for metric in metrics}),
            terms=terms,
            metric_terms=metrics,
            label_specs=MappingProxyType(labels),
            unused=tuple(dict.fromkeys([*spec.unused, *(str(ref) for ref in names if ref not in used)])),
            parts={part: slots for part, slots in spec.parts.items() if part in parts},
        )

    def _stays(self, spec: Declarations, taker: Taker) -> bool:
        part = _part(spec, taker.key)
        if part in self.parts or (isinstance(taker, Term) and taker.key in self.losses):
            return part in self.parts or taker.key in self.kept
        if part and all(_part(spec, loss) != part for loss in self.kept):
            return False
        figures = {figure for term in spec.terms if self._stays(spec, term) for figure in term.figures}
        return figures.issuperset(getattr(taker, "losses", ())) and self.theirs.isdisjoint(_takes(spec, taker))


def _takes(spec: Declarations, taker: Taker) -> Iterator[Ref]:
    """Yield the outputs and the labels of a loss or metric; an input is no task's own."""
    yield from taker.outputs
    yield from (Ref(LABELS, name) for name in slots_of(spec, taker) if name not in spec.inputs)


def _part(spec: Declarations, key: str) -> str:
    """Return the part of a combined spec that a loss or metric belongs to, "" without parts."""
    return next((part for part in spec.parts if key.startswith(f"{part}/")), "")
