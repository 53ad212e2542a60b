"""Build the optimizer of a TrainerSpec, and its schedule."""

from collections.abc import Sequence
from inspect import signature
from typing import Any

import torch
from torch.optim import Optimizer, lr_scheduler

from ..engines import CONTROLS
from ..schedules import with_base_rate
from ..spec import TrainerSpec
from ..spec.checks.trainers import option_messages, spec_messages
from ..utils.errors import note_call
from ..utils.signatures import signature_of
from ..utils.text import last_line, quoted, shown, suggest
from .handle import KEYS, Rates, TrainerHandle

KNOWN: dict[str, Any] = {
    name.lower(): kind
    for name, kind in vars(torch.optim).items()
    if isinstance(kind, type) and issubclass(kind, Optimizer) and kind is not Optimizer
}
ALIASES = {"learning_rate": "lr", "wd": "weight_decay"}  # MXNet's names
# SGD's fused operator fails if some parameters have a momentum, and others are reached for the first time
FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad)
HOW = ("fused", "foreach", "differentiable", "capturable")  # options that say how to compute, not what


def build_trainer(
    name: str, where: str, spec: TrainerSpec, parameters: Sequence[torch.nn.Parameter], fused: bool
) -> tuple[TrainerHandle | None, list[str]]:
    """Return the trainer of a TrainerSpec for `parameters`, and messages; None if it cannot be built.

    `where` is its name in messages. If `fused`, an optimizer of torch computes with its fused operators,
    which take a third of the time on a CPU, unless the options say how it computes. What an optimizer or a
    scheduler of the user's own raises is raised as it is.
    """
    messages, kind = spec_messages(where, spec, ALIASES), _kind(spec.optimizer)
    if isinstance(kind, Optimizer) or not callable(kind):
        messages.append(_unknown(where, spec.optimizer))
    if isinstance(spec.lr_scheduler, lr_scheduler.LRScheduler) or not callable(spec.lr_scheduler or _kind):
        way_out = "give a function of the optimizer, such as functools.partial(CosineAnnealingLR, T_max=1000)"
        messages.append(f"{where}: lr_scheduler is {shown(spec.lr_scheduler)}; {way_out}")
    if not messages:
        messages = _option_messages(where, kind, declared_options(spec))
    try:
        ready = bool(parameters) and not messages  # else it is known already that there are none
        return (_build(name, where, spec, kind, parameters, fused) if ready else None), messages
    except _Refused as error:
        return None, [f"{where}: {error}"]


def declared_options(spec: TrainerSpec) -> dict[str, Any]:
    """Return the options of a TrainerSpec by torch's names, unless its optimizer takes other ones."""
    takes = _takes(_kind(spec.optimizer))
    options = (spec.optimizer_params or {}).items()
    return {name if name in takes else ALIASES.get(name, name): value for name, value in options}


def closure_messages(where: str, optimizer: Optimizer) -> list[str]:
    """Return that an optimizer, such as LBFGS, computes losses within its step, if it does."""
    closure = signature(optimizer.step).parameters.get("closure")
    if closure is None or closure.default is not closure.empty:
        return []
    what = "computes losses within its step, by a closure, which fit does not"
    return [f"{where}: {type(optimizer).__name__} {what}; give another optimizer"]


class _Refused(Exception):
    """Why a trainer cannot be built."""


def _build(
    name: str, where: str, spec: TrainerSpec, kind: Any, parameters: Sequence[Any], fused: bool
) -> TrainerHandle:
    options, schedule, takes = declared_options(spec), spec.lr_scheduler, _takes(kind)
    is_schedule = hasattr(schedule, "base_lr")  # else it makes one of torch's
    if is_schedule:  # it may have state, so each trainer gets its own
        schedule = with_base_rate(schedule, options.get("lr"))
        options.update({"lr": options.get("lr", schedule.base_lr)} if "lr" in takes else {})
    of_torch = kind in KNOWN.values()
    how = {"fused": True} if fused and kind in FUSED and not options.keys() & HOW else {}
    optimizer = _called(where, of_torch, kind, options, list(parameters), **how)
    if not isinstance(optimizer, Optimizer):
        raise _Refused(f"the function returned {shown(optimizer)}, which is no torch.optim.Optimizer")
    if {id(p) for group in optimizer.param_groups for p in group["params"]} != set(map(id, parameters)):
        raise _Refused("the optimizer must hold exactly the parameters that it is called with")
    if schedule is None or is_schedule:
        return TrainerHandle(name, optimizer, Rates(optimizer, schedule))
    of_torch = getattr(schedule, "func", schedule) in vars(lr_scheduler).values()
    scheduler = _called(f"{where}: lr_scheduler", of_torch, schedule, {}, optimizer)
    if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
        raise _Refused("ReduceLROnPlateau reads a figure; use the handler multifit.PlateauHandler")
    if not isinstance(scheduler, lr_scheduler.LRScheduler):
        way_out = "it must return a scheduler of torch.optim.lr_scheduler, or have a base_lr"
        raise _Refused(f"lr_scheduler returned {shown(scheduler)} for the optimizer; {way_out}")
    return TrainerHandle(name, optimizer, Rates(optimizer, scheduler=scheduler))


def _called(where: str, of_torch: bool, function: Any, options: Any, *arguments: Any, **how: Any) -> Any:
    """Call a function; what torch does not take is refused, other errors are raised as they are."""
    try:
        return function(*arguments, **options, **how)
    except Exception as error:
        if of_torch:
            name = getattr(function, "func", function).__name__
            raise _Refused(f"{name} does not take {shown(options)}: {last_line(error)}") from error
        note_call(error, f"{where}: {shown(function)}, called with {shown(options)}")
        raise


def _kind(optimizer: Any) -> Any:
    return KNOWN.get(optimizer.lower()) if isinstance(optimizer, str) else optimizer


def _takes(kind: Any) -> list[str]:
    """Return the names of an optimizer's options."""
    known = signature_of(kind) if callable(kind) else None
    return sorted(list(known.parameters)[1:]) if known else []


def _option_messages(where: str, kind: Any, options: dict[str, Any]) -> list[str]:
    """Return what is wrong with the options of an optimizer of torch; the user's own may take anything."""
    if kind not in KNOWN.values():
        return []
    by_key = {KEYS.get(name, name): hint for name, hint in CONTROLS.items()}
    hints = {key: hint for key, hint in by_key.items() if not torch.is_tensor(options.get(key))}
    return option_messages(where, kind.__name__.lower(), options, _takes(kind), hints, ALIASES)


def _unknown(where: str, optimizer: object) -> str:
    if isinstance(optimizer, Optimizer):
        way_out = "give it alone, as the trainer, or give its class and its options"
        return f"{where}: the optimizer {type(optimizer).__name__} has its parameters already; {way_out}"
    valid = sorted(KNOWN.keys() - {"lbfgs"})
    near = suggest(optimizer.lower(), valid) if isinstance(optimizer, str) else ""
    return f"{where}: there is no optimizer {shown(optimizer)}{near}; valid are {quoted(valid)}"
