"""Build the trainers that are declared for a net: each trainable parameter has exactly one."""

from collections.abc import Container, Mapping, Sequence
from typing import Any, NamedTuple

from ...engines.rhythm import Rhythm, declared_rhythm
from ...spec import TrainerSpec
from ...spec.checks.trainers import (
    coverage_problems,
    declared_problems,
    listing,
    rhythm_messages,
)
from ...utils.errors import Problem
from ...utils.protocols import Context, Parameter
from ..compat import mx
from .handle import TrainerHandle
from .optimizers import build_optimizer, declared_options
from .parameters import learnable, select, trainable

DEFAULT = TrainerSpec(".*", "adam", {"learning_rate": 1e-3})
LIBRARY = (mx.gluon.Trainer, "gluon.Trainer")
STEP = mx.gluon.Trainer.step


class Bound(NamedTuple):
    """Trainers that were just built, with their largest norms.

    `parameters` are those that each trainer holds, by structural name. `options` are the options of
    optimizers that were declared by name. `rhythms` are those of trainers that do not update after every
    batch.
    """

    trainers: Mapping[str, mx.gluon.Trainer]
    clip_norms: dict[str, float]
    parameters: Mapping[str, Mapping[str, mx.gluon.Parameter]]
    options: Mapping[str, Mapping[str, Any]]
    rhythms: dict[str, Rhythm]


def bind_trainers(
    declared: Any,
    parameters: Mapping[str, mx.gluon.Parameter],
    frozen: Any,
    contexts: Sequence[Context],
    built: bool = False,
    known: Sequence[Problem] = (),
    accumulate: int = 1,
    resting: Container[str] = (),
) -> tuple[Bound | None, list[Problem]]:
    """Build the trainers, and check that every trainable parameter has exactly one.

    By default, :data:`DEFAULT` updates all parameters. `parameters` are all parameters by structural name,
    initialised; `frozen` selects those that no trainer updates. A trainer also holds the parameters that it
    selects but that are not trainable now, and updates them once they are. All trainers `accumulate` the
    gradients of that many batches. If the trainers are `built` already, only what may have become wrong since
    is checked, and None returned. Parameters that are `resting` will learn later, and count. Returns None and
    the problems if there are any, beginning with those `known` before.
    """
    single = not isinstance(declared, Mapping)
    named = {"trainer": DEFAULT if declared is None else declared} if single else declared
    named = {name: each.trainer if isinstance(each, TrainerHandle) else each for name, each in named.items()}
    where = {name: "trainers" if single else f'trainers["{name}"]' for name in named}
    problems = [*known, *declared_problems(named, where, LIBRARY, lambda each: each._optimizer)]
    valid = {n: each for n, each in named.items() if isinstance(each, (TrainerSpec, mx.gluon.Trainer))}
    can_learn = learnable(parameters)
    candidates = {n: p for n, p in can_learn.items() if p.grad_req != "null" or n in resting}
    frozen_set, selection_problems = frozen_names("frozen", frozen, parameters)
    held: dict[str, list[str]] = {}
    for name, value in valid.items():
        held[name], more = _held_names(where[name], value, can_learn, frozen_set, parameters)
        selection_problems += more
    if not built and can_learn and not trainable(parameters):
        message = 'the net has no parameters to train: unfreeze() some, freeze fewer, or set grad_req="write"'
        selection_problems.append(Problem("trainer", f"trainers: {message}"))
    updated = {name: [each for each in names if each in candidates] for name, names in held.items()}
    # parameters without a trainer are reported only if all trainers are valid: else they may belong to those
    if not selection_problems and len(valid) == len(named):
        selection_problems = coverage_problems(updated, candidates, frozen_set)
    problems += selection_problems
    optimizers: dict[str, Any] = {}
    for name, value in valid.items():
        if not built and isinstance(value, TrainerSpec):
            optimizers[name], more = build_optimizer(where[name], value)
            problems += more
        of_trainer = {each: parameters[each] for each in updated[name]}
        problems += rhythm_problems(where[name], value, accumulate, of_trainer)
        if isinstance(value, mx.gluon.Trainer):
            problems += gluon_trainer_problems(where[name], value, contexts)
    if problems or built:
        return None, problems
    return _new_trainers(valid, held, parameters, optimizers, accumulate), []


def _new_trainers(
    valid: Mapping[str, Any],
    held: Mapping[str, list[str]],
    parameters: Mapping[str, mx.gluon.Parameter],
    optimizers: Mapping[str, Any],
    accumulate: int,
) -> Bound:
    """Build the declared trainers, each for the parameters that it holds; all update by themselves."""
    by_trainer = {name: {each: parameters[each] for each in names} for name, names in held.items()}
    trainers, specs = dict(valid), {n: each for n, each in valid.items() if isinstance(each, TrainerSpec)}
    for name, value in valid.items():
        if name in specs:
            of_trainer = list(by_trainer[name].values())
            trainers[name] = mx.gluon.Trainer(of_trainer, optimizers[name], update_on_kvstore=False)
        else:
            value._kvstore_params["update_on_kvstore"] = False
    clip_norms = {name: float(s.clip_norm) for name, s in specs.items() if s.clip_norm is not None}
    options = {name: declared_options(s) for name, s in specs.items() if isinstance(s.optimizer, str)}
    rhythms = {name: declared_rhythm(value, accumulate) for name, value in valid.items()}
    slow = {name: rhythm for name, rhythm in rhythms.items() if rhythm.every > 1}
    return Bound(trainers, clip_norms, by_trainer, options, slow)


def gluon_trainer_problems(
    where: str, trainer: mx.gluon.Trainer, contexts: Sequence[Context]
) -> list[Problem]:
    """Check that a gluon.Trainer fits the devices of the run, and the phases of a training step.

    A training step reduces the gradients of all trainers, then clips them, then updates parameters. So a
    trainer's own ``step`` is not called, and an override of it would be ignored; gradients are means over the
    batch, not sums. `where` is the trainer's name in messages.
    """
    options, devices = trainer._kvstore_params, len(contexts)
    store = getattr(options["kvstore"], "type", options["kvstore"])
    built, run = (", ".join(map(str, each or ["nowhere"])) for each in (trainer._contexts, contexts))
    messages = {
        f'kvstore="{store}" adds up what each process has divided by its own samples; leave kvstore= out, '
        'and give MultiEstimator(world=multifit.connect("horovod" or "torch"))': "dist" in str(store),
        f"kvstore=None on {devices} devices never adds up gradients, so replicas would diverge; use "
        'kvstore="device", or a TrainerSpec': devices > 1 and store is None,
        "updates on its kvstore, where gradients cannot be clipped or changed; build it with "
        "update_on_kvstore=False, or give a TrainerSpec": options["update_on_kvstore"]
        or trainer._update_on_kvstore,
        f"was built for {built}, but the run is on {run}; initialise the net there before building the "
        "gluon.Trainer, or give a TrainerSpec": list(trainer._contexts or []) != list(contexts),
        f"{type(trainer).__name__} overrides step(), which fit does not call: it reduces gradients, clips "
        "them and updates by itself; give a TrainerSpec, with clip_norm= to clip, and a handler with "
        "change_gradients() for other changes": getattr(trainer.step, "__func__", None) is not STEP,
        "compression_params= has a threshold for sums over a batch's samples, but gradients are their means "
        "here, which it would distort; leave it out": bool(trainer._compression_params),
    }
    return [Problem("trainer", f"{where}: {message}") for message, applies in messages.items() if applies]


def frozen_names(
    where: str, frozen: Any, parameters: Mapping[str, Parameter]
) -> tuple[set[str], list[Problem]]:
    """Return the names of the parameters that ``frozen=`` selects; `where` is its name in messages."""
    items = () if frozen is None else frozen if isinstance(frozen, (list, tuple, set)) else [frozen]
    selected = [select(where, item, parameters) for item in items]
    return {name for names, _ in selected for name in names}, [each for _, more in selected for each in more]


def _held_names(
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
        return held_by_trainer(where, declared, candidates, frozen)
    names, problems = select(where, declared.params, candidates, every)
    held = [name for name in names if name not in frozen]
    if names and not held:
        message = f"everything that it selects is frozen: {listing(names)}"
        problems = [Problem("trainer", f"{where}: {message}; leave it out, or narrow frozen=")]
    return held, problems


def held_by_trainer(
    where: str, trainer: mx.gluon.Trainer, candidates: Mapping[str, Parameter], frozen: set[str]
) -> tuple[list[str], list[Problem]]:
    """Return the names of the parameters that a gluon.Trainer holds, and the problems found."""
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


def rhythm_problems(
    where: str, declared: Any, accumulate: int, parameters: Mapping[str, mx.gluon.Parameter]
) -> list[Problem]:
    """Return why the gradients of a trainer cannot be added up; `where` is its name in messages."""
    rhythm = declared_rhythm(declared, accumulate)
    messages = rhythm_messages(where, rhythm, accumulate)
    sparse = [name for name, p in parameters.items() if p._grad_stype != "default"]
    if sparse and rhythm.accumulate:
        messages.append(
            f"{where}: accumulates the gradients of {rhythm.every} batches, but those of {listing(sparse)} "
            "are sparse, and MXNet cannot add such gradients; build the layer with sparse_grad=False, or "
            "leave accumulate out"
        )
    return [Problem("trainer", message) for message in messages]
