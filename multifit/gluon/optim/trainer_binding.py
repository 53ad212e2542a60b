"""Build the trainers that are declared for a net, and check ``trainers=``."""

from __future__ import annotations

from typing import Any, Iterable, Mapping, Sequence

from ...errors import Problem, shown
from ...protocols import Context
from ...spec import TrainerSpec
from ..compat import mx
from .coverage import coverage_problems, frozen_names, held_names
from .gluon_trainers import gluon_trainer_problems
from .optimizers import build_optimizer
from .parameters import learnable, listing, sparse, trainable
from .rhythms import declared_rhythm, rhythm_problems
from .trainers import Trainers

DEFAULT = TrainerSpec(".*", "adam", {"learning_rate": 1e-3})


def bind_trainers(
    declared: Any,
    parameters: Mapping[str, mx.gluon.Parameter],
    frozen: Any,
    contexts: Sequence[Context],
    built: Trainers | None = None,
    known: Sequence[Problem] = (),
    accumulate: int = 1,
) -> tuple[Trainers | None, list[Problem]]:
    """Build the trainers, and check that every trainable parameter has exactly one.

    By default, :data:`DEFAULT` updates all parameters. `parameters` are all parameters by structural name,
    initialised; `frozen` selects those that no trainer updates. A trainer also holds the parameters that it
    selects but that are not trainable now, and updates them once they are. All trainers `accumulate` the
    gradients of that many batches. If the trainers are `built` already, only what may have become wrong since
    is checked. Returns None and the problems if there are any, beginning with those `known` before.
    """
    single = not isinstance(declared, Mapping)
    named = {"trainer": DEFAULT if declared is None else declared} if single else declared
    where = {name: "trainers" if single else f'trainers["{name}"]' for name in named}
    problems = [*known, *_declared_problems(named, where)]
    valid = {name: value for name, value in named.items() if _is_trainer(value)}
    candidates, can_learn = trainable(parameters), learnable(parameters)
    frozen_set, selection_problems = frozen_names(frozen, parameters)
    held: dict[str, list[str]] = {}
    for name, value in valid.items():
        held[name], more = held_names(where[name], value, can_learn, frozen_set, parameters)
        selection_problems += more
    if built is None and can_learn and not candidates:
        message = 'the net has no parameters to train: all have grad_req="null"; set it to "write"'
        selection_problems.append(Problem("trainer", f"trainers: {message}"))
    updated = {name: [each for each in names if each in candidates] for name, names in held.items()}
    # parameters without a trainer are reported only if all trainers are valid: else they may belong to those
    if not selection_problems and len(valid) == len(named):
        selection_problems = coverage_problems(updated, candidates, frozen_set)
    problems += selection_problems
    optimizers: dict[str, Any] = {}
    for name, value in valid.items():
        source = value if built is None else built[name].trainer
        of_trainer = {each: parameters[each] for each in updated[name]}
        optimizers[name], more = build_optimizer(where[name], source, of_trainer.values())
        problems += more + rhythm_problems(where[name], value, accumulate, of_trainer)
        if isinstance(value, mx.gluon.Trainer):
            problems += gluon_trainer_problems(where[name], value, contexts)
        if built is None:
            read_by_trainer = sparse({each: parameters[each] for each in held[name]})
            problems += _sparse_problems(where[name], value, read_by_trainer, contexts)
    problems += _unread_problems(sparse(parameters), [name for names in held.values() for name in names])
    if problems:
        return None, problems
    return built or _new_trainers(valid, held, parameters, optimizers, accumulate), []


def _new_trainers(
    valid: Mapping[str, Any],
    held: Mapping[str, list[str]],
    parameters: Mapping[str, mx.gluon.Parameter],
    optimizers: Mapping[str, Any],
    accumulate: int,
) -> Trainers:
    """Build the declared trainers, each for the parameters that it holds."""
    by_trainer = {name: {each: parameters[each] for each in names} for name, names in held.items()}
    trainers = {name: _build(value, by_trainer[name], optimizers[name]) for name, value in valid.items()}
    specs = {name: value for name, value in valid.items() if isinstance(value, TrainerSpec)}
    clip_norms = {name: float(s.clip_norm) for name, s in specs.items() if s.clip_norm is not None}
    options = {name: s.optimizer_params or {} for name, s in specs.items() if isinstance(s.optimizer, str)}
    rhythms = {name: declared_rhythm(value, accumulate) for name, value in valid.items()}
    slow = {name: rhythm for name, rhythm in rhythms.items() if rhythm.every > 1}
    return Trainers(trainers, clip_norms, by_trainer, options, slow)


def _build(
    declared: TrainerSpec | mx.gluon.Trainer,
    parameters: Mapping[str, mx.gluon.Parameter],
    optimizer: mx.optimizer.Optimizer,
) -> mx.gluon.Trainer:
    if isinstance(declared, mx.gluon.Trainer):
        return declared
    on_kvstore = None if sparse(parameters) else False  # only a kvstore can update sparse parameters
    of_trainer = list(parameters.values())
    return mx.gluon.Trainer(of_trainer, optimizer, kvstore="device", update_on_kvstore=on_kvstore)


def _is_trainer(value: object) -> bool:
    """Whether a value declares a trainer."""
    return isinstance(value, (TrainerSpec, mx.gluon.Trainer))


def _declared_problems(named: Mapping[Any, Any], where: Mapping[Any, str]) -> list[Problem]:
    """Check the types and names of trainers, and that no two gluon.Trainers share an optimizer object."""
    messages = [
        f"trainers: {shown(name)} is not a name; name each trainer with a string"
        for name in named
        if not isinstance(name, str) or not name
    ]
    messages += [_not_a_trainer(where[name], each) for name, each in named.items() if not _is_trainer(each)]
    if not named:
        messages.append("trainers: the dict is empty; name at least one trainer, or leave trainers= out")
    owners: dict[int, list[str]] = {}
    for name, value in named.items():
        if isinstance(value, mx.gluon.Trainer):
            owners.setdefault(id(value._optimizer), []).append(name)
    messages += [
        f"the trainers {' and '.join(names)} share one optimizer object, whose parameters and counters "
        "would mix; give each its own"
        for names in owners.values()
        if len(names) > 1
    ]
    return [Problem("trainer", message) for message in messages]


def _not_a_trainer(where: str, value: object) -> str:
    way_out = 'give TrainerSpec(".*", "adam")'
    if isinstance(value, (list, tuple)):
        way_out = 'several trainers need names: give a dict, such as {"body": TrainerSpec("body.*"), ...}'
    return f"{where}: {shown(value)} is neither a TrainerSpec nor a gluon.Trainer; {way_out}"


def _sparse_problems(
    where: str,
    value: TrainerSpec | mx.gluon.Trainer,
    parameters: Mapping[str, mx.gluon.Parameter],
    contexts: Sequence[Context],
) -> list[Problem]:
    """Check that a trainer can update row_sparse `parameters`, which MXNet keeps on one trainer's kvstore."""
    messages = []
    if parameters and isinstance(value, mx.gluon.Trainer):
        config = value._kvstore_params
        if config["kvstore"] is None or config["update_on_kvstore"] is False:
            messages.append("MXNet updates them on a kvstore; leave kvstore= and update_on_kvstore= out")
    elif parameters:
        if any(p._trainer is not None for p in parameters.values()):
            messages.append(
                "MXNet binds them to one trainer, and they already have one; give that one as trainers="
            )
        if value.clip_norm is not None and len(contexts) > 1:
            messages.append("their kvstore adds up and uses gradients at once; leave clip_norm out")
    start = f"{where}: holds row_sparse parameters, {listing(list(parameters))}"
    return [Problem("trainer", f"{start}: {message}") for message in messages]


def _unread_problems(parameters: Mapping[str, mx.gluon.Parameter], updated: Iterable[str]) -> list[Problem]:
    """Check that each of the row_sparse `parameters` has a trainer: MXNet cannot read it without one."""
    unread = [name for name, p in parameters.items() if p._trainer is None and name not in set(updated)]
    way_out = "leave them to a trainer, and set their lr_mult to 0"
    message = (
        f"frozen: MXNet reads row_sparse parameters through a trainer only: {listing(unread)}; {way_out}"
    )
    return [Problem("trainer", message)] if unread else []
