"""Specs made of other specs: one of several, and one of some of the tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any

from ..utils.errors import Problem, raise_problems
from ..utils.text import quoted, shown, suggest
from .specs import LabelSpec, LossSpec, MetricSpec
from .terms import (
    LABELS,
    LOSSES,
    NAN,
    OUTPUTS,
    Declarations,
    Declared,
    MatchedAnchors,
    MetricTerm,
    Ref,
    Taker,
    Term,
    Tree,
    bare_slots,
    changed,
    listed,
    resolve,
    slots_of,
)

Orders = Mapping[str, Sequence[str]]


def merged_order(orders: Orders) -> list[str] | None:
    """Return every slot once, in an order that keeps each part's order; None if there is no such order.

    `orders` has the slots of each part's batches. The slots of the first part come as early as possible.
    """
    waiting, merged = [list(order) for order in orders.values()], list[str]()
    while any(waiting):
        heads = [order[0] for order in waiting if order]
        first = next((head for head in heads if all(head not in order[1:] for order in waiting)), None)
        if first is None:
            return None
        merged.append(first)
        waiting = [order[1:] if order[:1] == [first] else order for order in waiting]
    return merged


def order_messages(orders: Orders) -> Iterator[str]:
    """Yield a message if the orders of the parts' slots cannot be merged."""
    if merged_order(orders) is not None:
        return
    every = [slot for order in orders.values() for slot in order]
    shared = {part: [slot for slot in order if every.count(slot) > 1] for part, order in orders.items()}
    found = "; ".join(f"{part} has {quoted(slots)}" for part, slots in shared.items() if len(slots) > 1)
    message = f"combine: the parts' batches have the slots that they share in different orders: {found}"
    yield f"{message}; give each part a batch= with the same order, that of the loader"


def combined_fields(parts: Mapping[str, Declarations], shared: Sequence[str]) -> dict[str, Any]:
    """Return the arguments of the combined TaskSpec, except `evaluate`; the parts must have no problems."""
    renamed = [_Part(name, declarations, tuple(shared)) for name, declarations in parts.items()]
    return {
        "outputs": [part.tree(part.declarations.outputs) for part in renamed],
        "inputs": list(dict.fromkeys(name for part in renamed for name in part.inputs())),
        "labels": _labels(renamed),
        "losses": {
            part.prefixed(term.key): part.loss(term) for part in renamed for term in part.declarations.terms
        },
        "metrics": {
            part.prefixed(term.key): part.metric(term)
            for part in renamed
            for term in part.declarations.metric_terms
        },
        "batch": merged_order(_orders(parts, shared)) or None,
        "unused": list(dict.fromkeys(name for part in renamed for name in part.unused())),
        "name": " + ".join(parts),
    }


def part_slots(parts: Mapping[str, Declarations], shared: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return, for each part, the combined names of its batch slots by their names in the part, in order."""
    renamed = [_Part(name, declarations, tuple(shared)) for name, declarations in parts.items()]
    return {part.name: {name: part.slot(name) for name in part.declarations.batch} for part in renamed}


def shared_slots(parts: Mapping[str, Any], shared: Any) -> tuple[Any, ...]:
    """Return the names of the shared slots, without ``labels.`` in front."""
    specs = [value for value in parts.values() if isinstance(value, Declarations)]
    return bare_slots(listed(shared), _slots(specs))


def combine_messages(parts: Mapping[str, Any], shared: Sequence[object]) -> Iterator[str]:
    """Yield why `parts`, by name, cannot be combined into one spec with the `shared` slots."""
    if not parts:
        yield "combine: no part is given; name at least one: TaskSpec.combine(detection=spec)"
    for part, value in parts.items():
        if not isinstance(value, Declarations):
            yield f"combine: {part} is {shown(value)}, which is not a TaskSpec"
    specs = {part: value for part, value in parts.items() if isinstance(value, Declarations)}
    for part, spec in specs.items():
        uncombinable = [field for field in ("forward", "batch_fn") if getattr(spec, field) is not None]
        for field in [*uncombinable, *["state"] * bool(spec.state)]:
            yield f"combine: {part} has a {field}= of its own, which cannot be combined; leave it out"
    slots = _slots(specs.values())
    for name in shared if specs else ():
        if not isinstance(name, str) or name not in slots:
            near = suggest(name, slots)
            yield f"shared: no part has a slot {quoted([name])}{near}; slots are {quoted(slots)}"
            continue
        labels = [spec.label_specs[name] for spec in specs.values() if name in spec.label_specs]
        different = set(filter(_has_more, labels))
        if len(different) > 1:
            found = " and ".join(sorted(map(str, different)))
            yield f'shared: the parts declare the label "{name}" differently: {found}; declare it the same'
    yield from order_messages(_orders(specs, shared))


def _orders(parts: Mapping[str, Declarations], shared: Sequence[Any]) -> dict[str, list[str]]:
    """Return the combined names of each part's slots in batch order; {} if no part declares a `batch`."""
    if all(spec.batch == spec.slot_names for spec in parts.values()):
        return {}  # the whole has the usual order too: all inputs, then the labels
    slots = part_slots(parts, shared)
    return {part: list(renamed.values()) for part, renamed in slots.items()}


def _slots(specs: Iterable[Declarations]) -> list[str]:
    return list(dict.fromkeys(name for spec in specs for name in (*spec.slot_names, *spec.batch)))


def _has_more(label: LabelSpec) -> bool:
    """Return whether a label declares more than its name."""
    return any(getattr(label, field.name) is not None for field in fields(label) if field.name != "name")


def _labels(parts: Iterable[_Part]) -> list[LabelSpec]:
    labels: dict[str, LabelSpec] = {}
    for label in (label for part in parts for label in part.labels()):
        if label.name not in labels or _has_more(label):
            labels[label.name] = label
    return list(labels.values())


@dataclass(frozen=True)
class _Part:
    """One part, and what its names become."""

    name: str
    declarations: Declarations
    shared: tuple[str, ...]

    def prefixed(self, name: str) -> str:
        return f"{self.name}/{name}"

    def slot(self, name: str) -> str:
        return name if name in self.shared else self.prefixed(name)

    def tree(self, outputs: Tree) -> Tree:
        return tuple(
            self.tree(item) if isinstance(item, tuple) else item if item is Ellipsis else self.prefixed(item)
            for item in outputs
        )

    def ref(self, ref: Ref) -> str:
        name = self.prefixed(ref.name) if ref.space == OUTPUTS else self.slot(ref.name)
        return str(replace(ref, name=name))

    def inputs(self) -> Iterator[str]:
        for name in self.declarations.inputs:
            yield self.slot(name)

    def labels(self) -> Iterator[LabelSpec]:
        for name, label in self.declarations.label_specs.items():
            mask = label.missing
            mask = self.slot(mask) if isinstance(mask, str) and mask != NAN else mask
            yield replace(label, name=self.slot(name), missing=mask)

    def loss(self, term: Term) -> LossSpec:
        by: Any = term.spec.normalize_by
        if isinstance(by, MatchedAnchors):
            by = None  # the default
        elif by is not None:
            by = self._on_own_names(by) if callable(by) else self.slot(by)
        changes: dict[str, Any] = {"normalize_by": by, "arguments": [self.ref(ref) for ref in term.args]}
        if term.spec.sample_weight is not None:
            changes["sample_weight"] = self.slot(term.spec.sample_weight)
        return replace(term.spec, outputs=None, labels=None, **changes)

    def metric(self, term: MetricTerm) -> MetricSpec:
        spec, args = term.spec, term.args
        if spec.sample_weight is not None:  # the last label
            spec, args = replace(spec, sample_weight=self.slot(spec.sample_weight)), args[:-1]
        losses = [self.prefixed(figure) for figure in term.losses] or None
        if spec.arguments is not None:
            arguments = [self.ref(ref) for ref in args]
            return replace(spec, outputs=None, labels=None, losses=losses, arguments=arguments)
        outputs = [self.prefixed(ref.name) for ref in args if ref.space == OUTPUTS]
        labels = [self.slot(ref.name) for ref in args if ref.space != OUTPUTS]
        return replace(spec, outputs=outputs or None, labels=labels or None, losses=losses)

    def unused(self) -> Iterator[str]:
        slots = (*self.declarations.slot_names, *self.declarations.batch)
        spaces = {OUTPUTS: self.declarations.output_names, LABELS: slots}
        for name in self.declarations.unused:
            yield from map(self.ref, resolve(name, spaces)[0])

    def _on_own_names(self, function: Callable[[Mapping[str, Any]], Any]) -> Callable[..., Any]:
        def normalizer(slots: Mapping[str, Any]) -> Any:
            names = self.declarations.slot_names
            return function(MappingProxyType({name: slots[self.slot(name)] for name in names}))

        return normalizer


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
