"""One TaskSpec of several: the parts' names get the part's name in front, shared slots stay one."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Callable, Mapping

from ..errors import Problem, names, raise_problems, suggest
from .names import OUTPUTS, SLOTS, Ref, leaves

if TYPE_CHECKING:
    from .task import TaskSpec

__all__ = ["combined"]


def combined(
    parts: Mapping[str, TaskSpec], shared: tuple[str, ...], build: Callable[..., TaskSpec]
) -> TaskSpec:
    """Return the TaskSpec that combines `parts`, made by ``build(**fields)``.

    Raises
    ------
    SpecError
        A part has a `forward` or a `batch_fn`, or a shared name is a slot of no part.
    """
    raise_problems(_problems(parts, shared))
    fields: dict[str, Any] = {
        "outputs": [],
        "labels": {},
        "losses": {},
        "metrics": {},
        "inputs": [],
        "unused": [],
    }
    for part, spec in parts.items():
        rename = _renamer(part, spec, shared)
        fields["outputs"].append(_mapped(spec.outputs, lambda name: f"{part}/{name}"))
        fields["inputs"] += [rename(name) for name in spec.inputs]
        fields["labels"].update(
            {
                rename(n): replace(spec.label_specs[n], name=rename(n))
                for n in spec.labels
                if n in spec.label_specs
            }
        )
        fields["losses"].update({f"{part}/{term.key}": _loss(term, part, rename) for term in spec.terms})
        fields["metrics"].update(
            {f"{part}/{metric.key}": _metric(metric, part, rename) for metric in spec.metric_terms}
        )
        fields["unused"] += _unused(spec, part, rename)
    fields["labels"] = list(fields["labels"].values())
    fields["inputs"] = list(dict.fromkeys(fields["inputs"]))
    fields["unused"] = [n for n in dict.fromkeys(fields["unused"]) if not _taken(n, fields)]
    if any(spec.evaluate is not None for spec in parts.values()):
        evaluations = {part: spec.evaluation for part, spec in parts.items()}
        fields["evaluate"] = combined(evaluations, _shared_in(evaluations, shared), build)
    return build(name=" + ".join(parts), **fields)


def _shared_in(parts: Mapping[str, TaskSpec], shared: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in shared if any(name in spec.slot_names for spec in parts.values()))


def _problems(parts: Mapping[str, TaskSpec], shared: tuple[str, ...]) -> list[Problem]:
    found = []
    slots = list(dict.fromkeys(name for spec in parts.values() for name in spec.slot_names))
    for name in shared:
        if name not in slots:
            found.append(
                f'shared: no part has a slot "{name}"{suggest(name, slots)}; slots are {names(slots)}'
            )
    for part, spec in parts.items():
        for what in ("forward", "batch_fn"):
            if getattr(spec, what) is not None:
                found.append(
                    f"{part} has a {what} of its own, which cannot be combined; combine the parts without it"
                )
    if not parts:
        found.append("combine: no part was given; name at least one: TaskSpec.combine(detection=spec)")
    return [Problem("spec", message) for message in found]


def _renamer(part: str, spec: TaskSpec, shared: tuple[str, ...]) -> Callable[[str], str]:
    return lambda name: name if name in shared and name in spec.slot_names else f"{part}/{name}"


def _mapped(tree: Any, rename: Callable[[str], str]) -> Any:
    if isinstance(tree, tuple):
        return tuple(_mapped(item, rename) for item in tree)
    return tree if tree is Ellipsis else rename(tree)


def _qualified(ref: Ref, part: str, rename: Callable[[str], str]) -> str:
    return f"{ref.space}." + (f"{part}/{ref.name}" if ref.space == OUTPUTS else rename(ref.name))


def _loss(term: Any, part: str, rename: Callable[[str], str]) -> Any:
    by = term.spec.normalize_by
    if callable(by):
        by = _on_own_slots(by, part)
    elif by is not None:
        by = rename(by)
    return replace(
        term.spec, outputs=None, labels=None, normalize_by=by,
        arguments=[_qualified(ref, part, rename) for ref in term.args],
    )  # fmt: skip


def _metric(metric: Any, part: str, rename: Callable[[str], str]) -> Any:
    outputs, labels, arguments = None, None, None
    if metric.spec.arguments is not None:
        arguments = [_qualified(ref, part, rename) for ref in metric.args]
    else:
        outputs = [f"{part}/{ref.name}" for ref in metric.outputs]
        labels = [rename(ref.name) for ref in metric.labels]
    losses = [f"{part}/{figure}" for figure in metric.losses] or None
    return replace(metric.spec, outputs=outputs, labels=labels, losses=losses, arguments=arguments)


def _on_own_slots(fn: Callable[[Mapping[str, Any]], Any], part: str) -> Callable[[Mapping[str, Any]], Any]:
    def normalizer(slots: Mapping[str, Any]) -> Any:
        own = {name[len(part) + 1 :]: array for name, array in slots.items() if name.startswith(part + "/")}
        return fn(MappingProxyType({**slots, **own}))

    return normalizer


def _unused(spec: TaskSpec, part: str, rename: Callable[[str], str]) -> list[str]:
    outputs = [name for _, name in leaves(spec.outputs) if name is not Ellipsis]
    found = []
    for name in spec.unused:
        space, _, bare = name.partition(".")
        if space in (OUTPUTS, SLOTS) and bare:
            found.append(_qualified(Ref(space, bare), part, rename))
            continue
        if name in outputs:
            found.append(_qualified(Ref(OUTPUTS, name), part, rename))
        if name in spec.slot_names:
            found.append(_qualified(Ref(SLOTS, name), part, rename))
    return found


def _taken(name: str, fields: Mapping[str, Any]) -> bool:
    # a slot that one part leaves unused may be shared with a part that uses it
    return any(name in (item.arguments or ()) for item in fields["losses"].values())
