"""One TaskSpec of several: the parts' names get the part's name in front, shared slots stay one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator, Mapping

from ..errors import Problem, names, raise_problems, shown, suggest
from .names import OUTPUTS, SLOTS, Ref, resolve
from .parts import LabelSpec, LossSpec, MetricSpec
from .terms import MetricTerm, Term

if TYPE_CHECKING:
    from .task import TaskSpec

__all__ = ["combined"]


def combined(parts: Mapping[str, Any], shared: tuple[Any, ...], build: type[TaskSpec]) -> TaskSpec:
    """Return the TaskSpec that combines `parts`.

    Parameters
    ----------
    parts : mapping of str to TaskSpec
        The specs by the name of their part.
    shared : tuple of str
        Slots that stay one.
    build : type
        TaskSpec.

    Raises
    ------
    SpecError
        A part is no TaskSpec, or has a `forward` or a `batch_fn`; a shared name is a slot of no part.
    """
    raise_problems(Problem("spec", message) for message in _problems(parts, shared, build))
    renamed = [_Part(name, spec, shared) for name, spec in parts.items()]
    evaluate = None
    if any(spec.evaluate is not None for spec in parts.values()):
        evaluations = {name: spec.evaluation for name, spec in parts.items()}
        slots = {slot for spec in evaluations.values() for slot in spec.slot_names}
        evaluate = combined(evaluations, tuple(name for name in shared if name in slots), build)
    return build(
        outputs=[part.tree(part.spec.outputs) for part in renamed],
        inputs=list(dict.fromkeys(part.slot(name) for part in renamed for name in part.spec.inputs)),
        labels=_labels(renamed),
        losses={part.own(term.key): part.loss(term) for part in renamed for term in part.spec.terms},
        metrics={
            part.own(term.key): part.metric(term) for part in renamed for term in part.spec.metric_terms
        },
        unused=list(dict.fromkeys(name for part in renamed for name in part.unused())),
        evaluate=evaluate,
        name=" + ".join(parts),
    )


def _problems(parts: Mapping[str, Any], shared: tuple[Any, ...], build: type[TaskSpec]) -> Iterator[str]:
    if not parts:
        yield "combine: no part is given; name at least one: TaskSpec.combine(detection=spec)"
    for part, spec in parts.items():
        if not isinstance(spec, build):
            yield f"combine: {part} is {shown(spec)}, which is no TaskSpec"
    specs = {part: spec for part, spec in parts.items() if isinstance(spec, build)}
    for part, spec in specs.items():
        for what in ("forward", "batch_fn"):
            if getattr(spec, what) is not None:
                yield f"combine: {part} has a {what}= of its own, which cannot be combined; leave it out"
    slots = list(dict.fromkeys(name for spec in specs.values() for name in spec.slot_names))
    for name in shared if specs else ():
        if name not in slots:
            yield f'shared: no part has a slot "{name}"{suggest(name, slots)}; slots are {names(slots)}'
        different = {spec.label_specs[name] for spec in specs.values() if name in _detailed(spec)}
        if len(different) > 1:
            found = " and ".join(sorted(map(str, different)))
            yield f'shared: the parts differ in what the label "{name}" is: {found}; declare it alike'


def _detailed(spec: TaskSpec) -> Mapping[str, LabelSpec]:
    """Return those labels of which more is known than their name."""
    return {name: label for name, label in spec.label_specs.items() if label != LabelSpec(name)}


def _labels(parts: Iterable[_Part]) -> list[LabelSpec]:
    found: dict[str, LabelSpec] = {}
    for label in (label for part in parts for label in part.labels()):
        if label.name not in found or label != LabelSpec(label.name):
            found[label.name] = label
    return list(found.values())


@dataclass(frozen=True)
class _Part:
    """One part, and what its names become."""

    name: str
    spec: TaskSpec
    shared: tuple[str, ...]

    def own(self, name: str) -> str:
        return f"{self.name}/{name}"

    def slot(self, name: str) -> str:
        return name if name in self.shared else self.own(name)

    def tree(self, outputs: Any) -> Any:
        if isinstance(outputs, tuple):
            return tuple(self.tree(item) for item in outputs)
        return outputs if outputs is Ellipsis else self.own(outputs)

    def ref(self, ref: Ref) -> str:
        return str(replace(ref, name=self.own(ref.name) if ref.space == OUTPUTS else self.slot(ref.name)))

    def labels(self) -> Iterator[LabelSpec]:
        for name, label in self.spec.label_specs.items():
            yield replace(label, name=self.slot(name))

    def loss(self, term: Term) -> LossSpec:
        by: Any = term.spec.normalize_by
        if callable(by):
            by = self._on_own_names(by)
        elif by is not None:
            by = self.slot(by)
        arguments = [self.ref(ref) for ref in term.args]
        return replace(term.spec, outputs=None, labels=None, normalize_by=by, arguments=arguments)

    def metric(self, term: MetricTerm) -> MetricSpec:
        losses = [self.own(figure) for figure in term.losses] or None
        if term.spec.arguments is not None:
            arguments = [self.ref(ref) for ref in term.args]
            return replace(term.spec, outputs=None, labels=None, losses=losses, arguments=arguments)
        outputs = [self.own(ref.name) for ref in term.outputs]
        labels = [self.slot(ref.name) for ref in term.labels]
        return replace(term.spec, outputs=outputs or None, labels=labels or None, losses=losses)

    def unused(self) -> Iterator[str]:
        spaces = {OUTPUTS: self.spec.output_names, SLOTS: self.spec.slot_names}
        for name in self.spec.unused:
            yield from (self.ref(ref) for ref in resolve(name, spaces)[0])

    def _on_own_names(self, function: Callable[[Mapping[str, Any]], Any]) -> Callable[..., Any]:
        def normalizer(slots: Mapping[str, Any]) -> Any:
            return function(MappingProxyType({n: slots[self.slot(n)] for n in self.spec.slot_names}))

        return normalizer
