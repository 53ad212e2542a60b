"""What can be wrong with a TaskSpec as a whole: slots that no batch holds, names that nothing takes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Iterator

from ..errors import Problem, names, suggest
from .names import OUTPUTS, SINGULAR, SLOTS, Ref, resolve

if TYPE_CHECKING:
    from .task import TaskSpec

__all__ = ["routing_problems"]


def routing_problems(spec: TaskSpec) -> list[Problem]:
    """Return what is wrong with the batch's order, the normalisers, `unused`, and what nothing takes."""
    messages = [*_batch(spec), *_normalizers(spec), *_unknown_unused(spec), *_untaken(spec)]
    return [Problem("spec", message) for message in messages]


def _batch(spec: TaskSpec) -> Iterator[str]:
    batch, slots = spec.batch or (), spec.slot_names
    for name, count in Counter(batch).items():
        if count > 1:
            yield f'batch: "{name}" stands {count} times; every slot of a batch has its own name'
        if name not in slots and name not in spec.unused and f"{SLOTS}.{name}" not in spec.unused:
            yield (
                f'batch: "{name}" is no input and no label{suggest(name, slots)}; valid are {names(slots)}; '
                f'if nothing takes it, list it: unused=["{name}"]'
            )
    missing = [name for name in slots if name not in batch]
    if missing:
        yield f"batch: {names(missing)} missing; it must name every input and label, it names {names(batch)}"


def _normalizers(spec: TaskSpec) -> Iterator[str]:
    for term in spec.terms:
        by = term.spec.normalize_by
        wrong = None if by is None or callable(by) else resolve(by, {SLOTS: spec.slot_names})[1]
        if wrong:
            yield f"{term.where}: normalize_by: {wrong}"


def _unknown_unused(spec: TaskSpec) -> Iterator[str]:
    spaces = {OUTPUTS: spec.output_names, SLOTS: (*spec.slot_names, *(spec.batch or ()))}
    for name in spec.unused:
        wrong = resolve(name, spaces)[1]
        if wrong:
            yield f"unused: {wrong}"


def _untaken(spec: TaskSpec) -> Iterator[str]:
    if not spec.takers:
        return  # nothing is routed at all: a spec for predicting
    taken = {ref for item in spec.takers for ref in item.args}
    taken |= {Ref(SLOTS, name) for name in spec.inputs}
    slots = {SLOTS: spec.slot_names}
    for term in spec.terms:
        if term.spec.normalize_by is not None and not callable(term.spec.normalize_by):
            taken.update(resolve(term.spec.normalize_by, slots)[0])
    spaces = {OUTPUTS: spec.output_names, **slots}
    taken |= {ref for name in spec.unused for ref in resolve(name, spaces)[0]}
    for space, declared in ((OUTPUTS, spec.output_names), (SLOTS, spec.labels)):
        for name in dict.fromkeys(declared):
            if Ref(space, name) not in taken:
                yield (
                    f'the {SINGULAR[space]} "{name}" is taken by no loss and no metric; '
                    f'route it, or list it: unused=["{name}"]'
                )
