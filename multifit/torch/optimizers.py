"""Build the optimizer of a TrainerSpec, and its schedule."""

from collections.abc import Sequence
from inspect import signature
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from ..checks.trainers import spec_messages, value_messages
from ..errors import Problem, last_line, note_call, quoted, shown, suggest
from ..schedules import with_base_rate
from ..signatures import signature_of
from ..spec import TrainerSpec
from .handle import CONTROLS, Rates, TrainerHandle

KNOWN: dict[str, Any] = {
    name.lower(): kind
    for name, kind in vars(torch.optim).items()
    if isinstance(kind, type) and issubclass(kind, Optimizer) and kind is not Optimizer
}
ALIASES = {"learning_rate": "lr", "wd": "weight_decay"}  # MXNet's names
HOW = ("fused", "foreach", "differentiable", "capturable")  # how to compute, not what


def declared_options(spec: TrainerSpec) -> dict[str, Any]:
    """Return the options of a TrainerSpec by torch's names, unless its optimizer takes other ones."""
    takes = _takes(spec.optimizer)
    return {
        ALIASES.get(name, name) if name not in takes else name: value
        for name, value in (spec.optimizer_params or {}).items()
    }


def build_trainer(
    name: str, where: str, spec: TrainerSpec, parameters: Sequence[torch.nn.Parameter], fused: bool
) -> tuple[TrainerHandle | None, list[Problem]]:
    """Return the trainer of a TrainerSpec for `parameters`, and the problems; None if it cannot be built.

    `where` is its name in messages. If `fused`, an optimizer of torch computes with its fused operators,
    which take a third of the time on a CPU, unless the options say how it computes. What an optimizer or a
    scheduler of the user's own raises is raised as it is.
    """
    messages, kind = spec_messages(where, spec, ALIASES), spec.optimizer
    if isinstance(kind, str):
        kind = KNOWN.get(kind.lower())
    if isinstance(kind, Optimizer) or not callable(kind):
        messages.append(_unknown(where, spec.optimizer))
    elif needs_closure(kind):
        messages.append(f"{where}: {CLOSURE.format(kind.__name__)}")
    if isinstance(spec.lr_scheduler, LRScheduler) or not callable(spec.lr_scheduler or _takes):
        way_out = "give a function of the optimizer, such as functools.partial(CosineAnnealingLR, T_max=1000)"
        messages.append(f"{where}: lr_scheduler is {shown(spec.lr_scheduler)}; {way_out}")
    if not messages:
        try:
            return _build(name, where, spec, kind, parameters, fused), []
        except _Refused as error:
            messages = list(error.args)
    return None, [Problem("trainer", message) for message in messages]


CLOSURE = "{} computes losses within its step, by a closure, which fit does not; give another optimizer"


def needs_closure(kind: Any) -> bool:
    """Whether a class of optimizers, such as LBFGS, computes losses again and again within its step."""
    closure = signature(kind.step).parameters.get("closure") if hasattr(kind, "step") else None
    return closure is not None and closure.default is closure.empty


class _Refused(Exception):
    """Why a trainer cannot be built: its arguments are messages."""


def _build(
    name: str, where: str, spec: TrainerSpec, kind: Any, parameters: Sequence[Any], fused: bool
) -> TrainerHandle:
    options, schedule, takes = declared_options(spec), spec.lr_scheduler, _takes(kind)
    stock = kind in KNOWN.values()
    if stock:
        has = f"; {kind.__name__.lower()} has {quoted(sorted(takes))}"
        unknown = [each for each in options if each not in takes]
        messages = [
            f"{where}: unknown option {shown(n)}{suggest(n, [*takes, *ALIASES])}{has}" for n in unknown
        ]
        hints = dict(CONTROLS.values())
        for key in hints.keys() & options.keys():
            if not isinstance(options[key], torch.Tensor):
                messages += value_messages(f"{where}: {key}", options[key], hints[key])
        if messages:
            raise _Refused(*messages)
    if hasattr(schedule, "base_lr"):  # it may have state, so each trainer gets its own
        schedule = with_base_rate(schedule, options.get("lr"))
        if "lr" in takes:
            options.setdefault("lr", schedule.base_lr)
    if fused and stock and "fused" in takes and not any(key in options for key in HOW):
        options["fused"] = True
    optimizer = _called(where, kind, stock, list(parameters), **options)
    if not isinstance(optimizer, Optimizer):
        raise _Refused(
            f"{where}: the function returned {shown(optimizer)}, which is no torch.optim.Optimizer"
        )
    taken = {id(each) for group in optimizer.param_groups for each in group["params"]}
    if taken != set(map(id, parameters)):
        raise _Refused(f"{where}: the optimizer must hold exactly the parameters that it is called with")
    if needs_closure(type(optimizer)):
        raise _Refused(f"{where}: {CLOSURE.format(type(optimizer).__name__)}")
    if schedule is None or hasattr(schedule, "base_lr"):
        return TrainerHandle(name, optimizer, Rates(optimizer, schedule))
    of_torch = getattr(schedule, "func", schedule) in vars(torch.optim.lr_scheduler).values()
    scheduler = _called(f"{where}: lr_scheduler", schedule, of_torch, optimizer)
    if isinstance(scheduler, ReduceLROnPlateau):
        raise _Refused(f"{where}: ReduceLROnPlateau reads a figure; use the handler multifit.PlateauHandler")
    if not isinstance(scheduler, LRScheduler):
        way_out = "it must return a scheduler of torch.optim.lr_scheduler, or have a base_lr"
        raise _Refused(f"{where}: lr_scheduler returned {shown(scheduler)} for the optimizer; {way_out}")
    return TrainerHandle(name, optimizer, Rates(optimizer, scheduler=scheduler))


def _called(where: str, function: Any, of_torch: bool, *arguments: Any, **options: Any) -> Any:
    """Call a function; what torch does not take is refused, other errors are raised as they are."""
    try:
        return function(*arguments, **options)
    except Exception as error:
        if not of_torch:
            note_call(error, f"{where}: {shown(function)}, called with {shown(options)}")
            raise
        name = getattr(function, "func", function).__name__
        raise _Refused(f"{where}: {name} does not take {shown(options)}: {last_line(error)}") from error


def _takes(optimizer: Any) -> set[str]:
    """Return the names of an optimizer's options."""
    kind = KNOWN.get(optimizer.lower()) if isinstance(optimizer, str) else optimizer
    known = signature_of(kind) if callable(kind) else None
    names = list(known.parameters) if known else []
    return set(names[1:])


def _unknown(where: str, optimizer: object) -> str:
    if isinstance(optimizer, Optimizer):
        way_out = "give it alone, as the trainer, or give its class and its options"
        return f"{where}: the optimizer {type(optimizer).__name__} has its parameters already; {way_out}"
    valid = sorted(KNOWN.keys() - {"lbfgs"})
    near = suggest(optimizer.lower(), valid) if isinstance(optimizer, str) else ""
    return f"{where}: there is no optimizer {shown(optimizer)}{near}; valid are {quoted(valid)}"
