"""Build the trainers that are declared for a net."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from ...errors import Problem
from ...protocols import Context
from ...spec import TrainerSpec
from ..compat import mx
from .coverage import coverage_problems, frozen_names, moved_names
from .declared_trainers import (
    declared_problems,
    device_problems,
    is_trainer,
    sparse_problems,
    unread_problems,
)
from .optimizers import build_optimizer
from .parameters import trainable
from .trainers import Trainers

DEFAULT = TrainerSpec(".*", "adam", {"learning_rate": 1e-3})


def bind_trainers(
    declared: Any, parameters: Mapping[str, mx.gluon.Parameter], frozen: Any, contexts: Sequence[Context]
) -> tuple[Trainers | None, list[Problem]]:
    """Build the trainers, and check that every trainable parameter has exactly one.

    By default, :data:`DEFAULT` moves all parameters. `parameters` are all parameters by structural name,
    initialised; `frozen` selects those that no trainer moves. Returns None with problems, if there are any.
    """
    single = not isinstance(declared, Mapping)
    named = {"trainer": DEFAULT if declared is None else declared} if single else declared
    where = {name: "trainers" if single else f'trainers["{name}"]' for name in named}
    problems = declared_problems(declared, named)
    valid = {name: value for name, value in named.items() if is_trainer(value)}
    candidates = trainable(parameters)
    frozen_set, selection_problems = frozen_names(frozen, parameters)
    moved: dict[str, list[str]] = {}
    for name, value in valid.items():
        moved[name], more = moved_names(where[name], value, candidates, frozen_set)
        selection_problems += more
    if not selection_problems and len(valid) == len(named):  # otherwise, missing parameters are no surprise
        selection_problems = coverage_problems(moved, candidates, frozen_set)
    problems += selection_problems
    optimizers: dict[str, Any] = {}
    for name, value in valid.items():
        held = {parameter: parameters[parameter] for parameter in moved[name]}
        optimizers[name], more = build_optimizer(where[name], value, held.values())
        problems += more + device_problems(where[name], value, contexts)
        problems += sparse_problems(where[name], value, held, contexts)
    problems += unread_problems(parameters, [name for names in moved.values() for name in names])
    if problems:
        return None, problems
    trainers = {n: _build(v, [parameters[p] for p in moved[n]], optimizers[n]) for n, v in valid.items()}
    norms = {name: getattr(value, "clip_norm", None) for name, value in valid.items()}
    clip_norms = {name: float(norm) for name, norm in norms.items() if norm is not None}
    options = {
        name: value.optimizer_params or {}
        for name, value in valid.items()
        if isinstance(value, TrainerSpec) and isinstance(value.optimizer, str)
    }
    return Trainers(trainers, clip_norms, moved, options), []


def _build(
    declared: TrainerSpec | mx.gluon.Trainer,
    parameters: list[mx.gluon.Parameter],
    optimizer: mx.optimizer.Optimizer,
) -> mx.gluon.Trainer:
    if isinstance(declared, mx.gluon.Trainer):
        return declared
    is_sparse = any(parameter._stype != "default" for parameter in parameters)  # moved on a kvstore only
    on_kvstore = None if is_sparse else False
    return mx.gluon.Trainer(parameters, optimizer, kvstore="device", update_on_kvstore=on_kvstore)
