"""Check that every trainable parameter has exactly one trainer, or is frozen."""

from __future__ import annotations

import re
from typing import Any, Mapping, Sequence

from ...errors import Problem
from ...protocols import Parameter
from ...spec import TrainerSpec
from ..compat import mx
from .parameters import listing, select


def frozen_names(frozen: Any, parameters: Mapping[str, Parameter]) -> tuple[set[str], list[Problem]]:
    """Return the names of the parameters that ``frozen=`` selects."""
    names: set[str] = set()
    problems: list[Problem] = []
    items = () if frozen is None else frozen if isinstance(frozen, (list, tuple, set)) else [frozen]
    for item in items:
        selected, more = select("frozen", item, parameters)
        names.update(selected)
        problems += more
    return names, problems


def held_names(
    where: str,
    declared: TrainerSpec | mx.gluon.Trainer,
    candidates: Mapping[str, Parameter],
    frozen: set[str],
    every: Mapping[str, Parameter],
) -> tuple[list[str], list[Problem]]:
    """Return the names of the parameters that a trainer holds, and the problems found.

    It updates those of them whose ``grad_req`` is not "null" at the time. `where` is the trainer's name in
    messages, and `candidates` are those of `every` parameter that are learnable. Frozen parameters are
    subtracted from those of a TrainerSpec; a gluon.Trainer must not update any of them.
    """
    if not isinstance(declared, TrainerSpec):
        return _held_by_trainer(where, declared, candidates, frozen)
    names, problems = select(where, declared.params, candidates, every)
    held = [name for name in names if name not in frozen]
    if names and not held:
        message = f"everything that it selects is frozen: {listing(names)}"
        problems = [Problem("trainer", f"{where}: {message}; leave it out, or narrow frozen=")]
    return held, problems


def _held_by_trainer(
    where: str, trainer: mx.gluon.Trainer, candidates: Mapping[str, Parameter], frozen: set[str]
) -> tuple[list[str], list[Problem]]:
    in_trainer = {id(p) for p in trainer._params}
    held = [name for name, parameter in candidates.items() if id(parameter) in in_trainer]
    in_net = {id(parameter) for parameter in candidates.values()}
    foreign = [p.name for p in trainer._params if p.grad_req != "null" and id(p) not in in_net]
    messages = []
    if foreign:
        messages.append(
            f"{where}: holds parameters that the net does not have: {listing(foreign)}; "
            "build it from net.collect_params()"
        )
    contradicting = [name for name in held if name in frozen and candidates[name].grad_req != "null"]
    if contradicting:
        messages.append(
            f"{where}: updates parameters that frozen= names: {listing(contradicting)}; take them out of the "
            "gluon.Trainer, or give a TrainerSpec, from which frozen parameters are subtracted"
        )
    return held, [Problem("trainer", message) for message in messages]


def coverage_problems(
    updated: Mapping[str, Sequence[str]], candidates: Mapping[str, Parameter], frozen: set[str]
) -> list[Problem]:
    """Check that each trainable parameter has exactly one trainer, or is frozen.

    `updated` are the names of each trainer's parameters.
    """
    owners: dict[str, list[str]] = {name: [] for name in candidates}
    for trainer, names in updated.items():
        for name in names:
            owners[name].append(trainer)
    shared: dict[tuple[str, ...], list[str]] = {}
    for name, trainers in owners.items():
        if len(trainers) > 1:
            shared.setdefault(tuple(trainers), []).append(name)
    messages = [
        f"the trainers {' and '.join(trainers)} would update {listing(names)}; each parameter belongs to "
        "exactly one: narrow a pattern"
        for trainers, names in shared.items()
    ]
    without = [name for name, trainers in owners.items() if not trainers and name not in frozen]
    if without:
        others = [name for name, trainers in owners.items() if trainers]
        messages.append(
            f"no trainer updates {listing(without)}, so they would stay as they are; add a TrainerSpec for "
            f"them, or pass {freezing(without, others)}"
        )
    return [Problem("trainer", message) for message in messages]


def freezing(names: Sequence[str], others: Sequence[str]) -> str:
    """Return the argument ``frozen=[...]`` that selects some parameters, and none of the others."""
    return f"frozen=[{listing(list(dict.fromkeys(_pattern(name, others) for name in names)))}]"


def _pattern(name: str, updated: Sequence[str]) -> str:
    """Return a pattern that selects a parameter, as many similar ones as possible, and none in `updated`."""
    parts = name.split(".")
    blocks = [f"{'.'.join(parts[:depth])}.*" for depth in range(1, len(parts))]
    kinds = [f".*{part}" for part in parts[1:][-1:]]
    narrow = (each for each in blocks + kinds if not any(re.fullmatch(each, other) for other in updated))
    return next(narrow, name)
