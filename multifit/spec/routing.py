"""Checks across declarations: the batch's order, and names that nothing takes."""

from __future__ import annotations

from collections import Counter
from typing import Iterator

from ..errors import quoted, suggest
from .declarations import Declarations
from .names import LABELS, OUTPUTS, SINGULAR, Ref, resolve


def routing_messages(declarations: Declarations) -> Iterator[str]:
    """Yield what is wrong with the batch's order and with `unused`, and which names nothing takes."""
    yield from _batch(declarations)
    yield from _unknown_unused(declarations)
    yield from _not_taken(declarations)


def _batch(declarations: Declarations) -> Iterator[str]:
    batch, slots, unused = declarations.batch, dict.fromkeys(declarations.slot_names), declarations.unused
    counts = Counter(batch)
    for name, count in counts.items():
        if count > 1:
            yield f'batch: "{name}" is listed {count} times; every slot of a batch has its own name'
        if name not in slots and name not in unused and f"{LABELS}.{name}" not in unused:
            yield (
                f'batch: "{name}" is neither an input nor a label{suggest(name, slots)}; valid are '
                f'{quoted(slots)}; if nothing takes it, list it: unused=["{name}"]'
            )
    missing = [name for name in slots if name not in counts and name not in declarations.state]
    if missing:
        every = "it must name every input and label"
        yield f"batch: {quoted(missing)} missing; {every}, it names {quoted(batch)}"


def _unknown_unused(declarations: Declarations) -> Iterator[str]:
    slots = (*declarations.slot_names, *declarations.batch)
    for name in declarations.unused:
        wrong = resolve(name, {OUTPUTS: declarations.output_names, LABELS: slots})[1]
        if wrong:
            yield f"unused: {wrong}"


def _not_taken(declarations: Declarations) -> Iterator[str]:
    if not declarations.takers:
        return  # a spec that only predicts
    used = _used(declarations)
    for space, declared in ((OUTPUTS, declarations.output_names), (LABELS, declarations.labels)):
        for name in dict.fromkeys(declared):
            if Ref(space, name) not in used:
                yield (
                    f'the {SINGULAR[space]} "{name}" is not taken by any loss or metric; '
                    f'route it, or list it: unused=["{name}"]'
                )


def _used(declarations: Declarations) -> set[Ref]:
    """Return the outputs and slots that something takes, or that are listed as unused."""
    slots = {LABELS: declarations.slot_names}
    used = {ref for item in declarations.takers for ref in item.args}
    used |= {Ref(LABELS, name) for name in declarations.inputs}
    used |= {
        Ref(LABELS, by)
        for by in (term.spec.normalize_by for term in declarations.terms)
        if isinstance(by, str)
    }
    masks = [label.missing for label in declarations.label_specs.values() if isinstance(label.missing, str)]
    used |= {Ref(LABELS, name) for name in masks}
    used |= {Ref(OUTPUTS, name) for name in declarations.state}
    for name in declarations.unused:
        used.update(resolve(name, {OUTPUTS: declarations.output_names, **slots})[0])
    return used
