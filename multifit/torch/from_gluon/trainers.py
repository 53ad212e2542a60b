"""What is declared for a Gluon net's trainers, as for a module's: MXNet's optimizers on tensors."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from ...gluon.compat import mx
from ...gluon.data.devices import placed_on
from ...gluon.optim.binding import DEFAULT, frozen_names, gluon_trainer_problems, held_by_trainer
from ...gluon.optim.optimizers import KNOWN, build_optimizer
from ...gluon.optim.parameters import learnable, select
from ...spec import TrainerSpec
from ...utils.errors import Problem
from ...utils.text import quoted
from .optimizer import MXNetOptimizer
from .parameters import WAY_OUT
from .rules import RULES

Lookup = Callable[[Tensor], Any]
"""Returns the parameter of Gluon's that a tensor holds."""


def converted_trainers(
    declared: Any, parameters: Mapping[str, Any], frozen: Any, lookup: Lookup, log_once: Callable[[str], Any]
) -> tuple[Any, list[str], list[Problem]]:
    """Return trainers and frozen names as they are declared for a module, and the problems.

    A TrainerSpec or a ``gluon.Trainer`` becomes a TrainerSpec whose optimizer computes MXNet's numbers.
    `parameters` are Gluon's, by structural name.
    """
    if declared is None:
        rate = (DEFAULT.optimizer_params or {})["learning_rate"]
        log_once(f"default trainer: {DEFAULT.optimizer}, learning rate {rate:g}, over all parameters")
        declared = DEFAULT
    names, problems = frozen_names("frozen", frozen, parameters)
    one = not isinstance(declared, Mapping)
    result = {}
    for name, each in ({"trainers": declared} if one else declared).items():
        where = "trainers" if one else f'trainers["{name}"]'
        each = getattr(each, "trainer", each) if type(each).__name__ == "TrainerHandle" else each
        result[name], more = _converted(where, each, parameters, names, lookup)
        problems += more
    return (result["trainers"] if one else result), sorted(names), problems


def _converted(
    where: str, declared: Any, parameters: Mapping[str, Any], frozen: set[str], lookup: Lookup
) -> tuple[Any, list[Problem]]:
    can_learn = learnable(parameters)
    if isinstance(declared, mx.gluon.Trainer):
        held, problems = held_by_trainer(where, declared, can_learn, frozen)
        problems += gluon_trainer_problems(where, declared, placed_on(parameters.values()))
        optimizer, places = copy.deepcopy(declared.optimizer), declared._param2idx
        # what the user froze by grad_req may be there too, and may be unfrozen
        pattern: Any = _pattern(held)
        spec = TrainerSpec("")
        ordered = {n: places[parameters[n].name] for n in held}
    elif isinstance(declared, TrainerSpec):
        optimizer, problems = build_optimizer(where, declared)
        pattern, spec = declared.params, declared
        held, more = select(where, declared.params, can_learn, parameters)
        ordered = {n: place for place, n in enumerate(n for n in held if n not in frozen)}
        if not isinstance(declared.params, str):
            problems += more
            pattern = _pattern(held)
    else:
        return declared, []
    if optimizer is None or problems:
        return declared, problems
    kind = type(optimizer)
    if kind.__name__.lower() not in RULES or not kind.__module__.startswith(KNOWN):
        message = f"{kind.__name__} has no translation (supported are {quoted(sorted(RULES))})"
        message = f'engine="torch": {where}: {message}; use one of these, {WAY_OUT}'
        return declared, [Problem("trainer", message)]
    schedule, optimizer.lr_scheduler = optimizer.lr_scheduler, None
    counts = optimizer._index_update_count
    before = {n: counts.get(at, optimizer.begin_num_update) for n, at in ordered.items()}
    states: dict[str, Any] = {}
    if isinstance(declared, mx.gluon.Trainer):  # which may have updated already
        known_states = declared._updaters[0].states if declared._updaters else {}
        states = {n: known_states[at] for n, at in ordered.items() if at in known_states}
    structural = {id(each): name for name, each in parameters.items()}

    named = type(kind.__name__, (MXNetOptimizer,), {})  # a name that messages and the plan show

    def make(tensors: Sequence[Tensor], **declared: Any) -> MXNetOptimizer:
        """Return the optimizer; the declared options are those that it has already."""
        found = {each: structural[id(lookup(each))] for each in tensors}
        known = {tensor: before.get(name, 0) for tensor, name in found.items()}
        begun = {tensor: states[name] for tensor, name in found.items() if name in states}
        made: MXNetOptimizer = named(tensors, copy.deepcopy(optimizer), lookup, known, begun)
        return made

    make.__name__ = named.__name__
    options = {n: each for n, each in (spec.optimizer_params or {}).items() if n != "lr_scheduler"}
    made = replace(spec, params=pattern, optimizer=make, optimizer_params=options, lr_scheduler=schedule)
    return made, []


def _pattern(names: Sequence[str]) -> str:
    """Return a pattern that selects just these names."""
    return "|".join(map(re.escape, names))
