"""Whether trainers, as declared, would move every parameter exactly once, and alike on all devices."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from ...errors import Problem, shown
from ...spec import TrainerSpec
from ..compat import mx
from .parameters import listing, selected

__all__ = [
    "coverage_problems",
    "declared_problems",
    "device_problems",
    "frozen_names",
    "held_names",
    "is_trainer",
]


def is_trainer(value: Any) -> bool:
    """Whether `value` is what a trainer can be declared with."""
    return isinstance(value, (TrainerSpec, mx.gluon.Trainer))


def declared_problems(declared: Any, given: Mapping[Any, Any]) -> list[Problem]:
    """Check that trainers are trainers with names, and that no two share an optimizer object."""
    messages = [
        f"trainers: {shown(name)} is no name; name each trainer with a string"
        for name in given
        if not isinstance(name, str) or not name
    ]
    messages += [_no_trainer(name, value, declared) for name, value in given.items() if not is_trainer(value)]
    if not given:
        messages.append("trainers: the dict is empty; name at least one trainer, or leave trainers= out")
    owners: dict[int, list[str]] = {}
    for name, value in given.items():
        optimizer = (
            value._optimizer if isinstance(value, mx.gluon.Trainer) else getattr(value, "optimizer", None)
        )
        if isinstance(optimizer, mx.optimizer.Optimizer):
            owners.setdefault(id(optimizer), []).append(name)
    messages += [
        f"the trainers {' and '.join(names)} share one optimizer object, whose parameters and counters "
        "would mix; give each its own"
        for names in owners.values()
        if len(names) > 1
    ]
    return [Problem("trainer", message) for message in messages]


def _no_trainer(name: Any, value: Any, declared: Any) -> str:
    where = f'trainers["{name}"]' if isinstance(declared, Mapping) else "trainers"
    way = 'give TrainerSpec(".*", "adam")'
    if isinstance(value, (list, tuple)):
        way = 'several trainers need names: give a dict, such as {"body": TrainerSpec("body.*"), ...}'
    return f"{where}: {shown(value)} is neither a TrainerSpec nor a gluon.Trainer; {way}"


def frozen_names(frozen: Any, parameters: Mapping[str, Any]) -> tuple[set[str], list[Problem]]:
    """Return the names of what is frozen on purpose."""
    names: set[str] = set()
    problems: list[Problem] = []
    for item in frozen if isinstance(frozen, (list, tuple, set)) else [] if frozen is None else [frozen]:
        found, wrong = selected("frozen", item, parameters)
        names.update(found)
        problems += wrong
    return names, problems


def held_names(
    where: str, value: Any, wanted: Mapping[str, Any], frozen: set[str]
) -> tuple[list[str], list[Problem]]:
    """Return the names of the parameters that a trainer moves; a TrainerSpec leaves frozen ones out."""
    if not isinstance(value, TrainerSpec):
        return _held_already(where, value, wanted, frozen)
    names, problems = selected(where, value.params, wanted)
    kept = [name for name in names if name not in frozen]
    if names and not kept:
        found = f"everything that it selects is frozen: {listing(names)}"
        problems = [Problem("trainer", f"{where}: {found}; leave it out, or narrow frozen=")]
    return kept, problems


def _held_already(
    where: str, trainer: Any, wanted: Mapping[str, Any], frozen: set[str]
) -> tuple[list[str], list[Problem]]:
    moved = {id(p): p.name for p in trainer._params if p.grad_req != "null"}
    known = [name for name, parameter in wanted.items() if id(parameter) in moved]
    ours = {id(parameter) for parameter in wanted.values()}
    foreign = [name for identity, name in moved.items() if identity not in ours]
    messages = []
    if foreign:
        messages.append(
            f"{where}: holds parameters that the net does not have: {listing(foreign)}; "
            "build it from net.collect_params()"
        )
    met = [name for name in known if name in frozen]
    if met:
        messages.append(
            f"{where}: moves parameters that frozen= names: {listing(met)}; take them out of the "
            "gluon.Trainer, or give a TrainerSpec, from which frozen parameters are subtracted"
        )
    return known, [Problem("trainer", message) for message in messages]


def coverage_problems(
    held: Mapping[str, Sequence[str]], wanted: Mapping[str, Any], frozen: set[str]
) -> list[Problem]:
    """Check that each trainable parameter has exactly one trainer, or is frozen."""
    owners: dict[str, list[str]] = {name: [] for name in wanted}
    for trainer, names in held.items():
        for name in names:
            owners[name].append(trainer)
    twice: dict[tuple[str, ...], list[str]] = {}
    for name, several in owners.items():
        if len(several) > 1:
            twice.setdefault(tuple(several), []).append(name)
    messages = [
        f"the trainers {' and '.join(several)} would move {listing(names)}; each parameter belongs to "
        "exactly one: narrow a pattern"
        for several, names in twice.items()
    ]
    none = [name for name, several in owners.items() if not several and name not in frozen]
    if none:
        patterns = dict.fromkeys(f"{name.split('.')[0]}.*" if "." in name else name for name in none)
        messages.append(
            f"no trainer moves {listing(none)}, so they would stay as they are; add a TrainerSpec for them, "
            f"or say frozen=[{listing(list(patterns))}]"
        )
    return [Problem("trainer", message) for message in messages]


def device_problems(where: str, value: Any, contexts: Sequence[Any]) -> list[Problem]:
    """Check that a gluon.Trainer of the user's serves the devices of the run."""
    messages = []
    if isinstance(value, mx.gluon.Trainer):
        if len(contexts) > 1 and value._kvstore_params["kvstore"] is None:
            messages.append(
                f"{where}: kvstore=None on {len(contexts)} devices never adds up gradients, so replicas "
                'would diverge; use kvstore="device", or a TrainerSpec'
            )
        if len(contexts) == 1 and value._kvstore_params["update_on_kvstore"]:
            messages.append(
                f"{where}: update_on_kvstore=True on one device, where MXNet has no kvstore to update on; "
                "leave it out"
            )
        if list(value._contexts or []) != list(contexts):
            built, run = (", ".join(map(str, found or ["nowhere"])) for found in (value._contexts, contexts))
            messages.append(
                f"{where}: was built for {built}, but the run is on {run}; "
                "initialise the net there before building the gluon.Trainer, or give a TrainerSpec"
            )
    return [Problem("trainer", message) for message in messages]
