"""Build the optimizer of a TrainerSpec."""

import copy
from collections.abc import Mapping
from inspect import signature
from typing import Any

from ...schedules import with_base_rate
from ...spec import TrainerSpec
from ...spec.checks.trainers import option_messages, spec_messages
from ...utils.arguments import NotNegative, Share
from ...utils.errors import Problem, note_call
from ...utils.text import last_line, quoted, shown, suggest
from ..compat import mx
from . import own_optimizers  # noqa: F401 (registers them)

KNOWN = ("mxnet.", "gluonnlp.", "multifit.")  # modules of optimizers whose options are known
ALIASES = {"lr": "learning_rate", "weight_decay": "wd"}  # PyTorch's names
NO_OPTIONS = {"self", "args", "kwargs", "options", "param_idx2name", "param_dict", "sym"}  # but arguments
LIMITS: dict[str, Any] = {
    **dict.fromkeys(("learning_rate", "wd"), NotNegative),
    **dict.fromkeys(("momentum", "beta1", "beta2"), Share),
    "clip_gradient": float | None,
}
"""The valid values of options of these optimizers."""


def build_optimizer(where: str, spec: TrainerSpec) -> tuple[mx.optimizer.Optimizer | None, list[Problem]]:
    """Return the optimizer of a TrainerSpec, and the problems; None if it cannot be built.

    `where` is the trainer's name in messages. What an optimizer of the user's own raises is raised as it is.
    """
    optimizer, messages = None, [*spec_messages(where, spec, ALIASES), *_schedule_messages(where, spec)]
    known = mx.optimizer.Optimizer.opt_registry
    class_ = known.get(spec.optimizer.lower()) if isinstance(spec.optimizer, str) else None
    if isinstance(spec.optimizer, mx.optimizer.Optimizer):
        if spec.optimizer_params or spec.lr_scheduler is not None:
            way_out = "give its name to set optimizer_params or lr_scheduler"
            messages.append(f"{where}: an optimizer object has its options already; {way_out}")
        try:
            optimizer = copy.deepcopy(spec.optimizer)  # without its parameters, and with counts of its own
        except Exception as error:
            why = f"{type(error).__name__}: {last_line(error)}"
            messages.append(f"{where}: {type(spec.optimizer).__name__} cannot be copied: {why}")
    elif class_ in (None, mx.optimizer.Test):  # a dummy, which adds gradients instead
        messages.append(_unknown(where, spec.optimizer))
    elif not messages:
        optimizer, messages = _build(where, class_, declared_options(spec), spec.lr_scheduler)
    return optimizer, [Problem("trainer", message) for message in messages]


def declared_options(spec: TrainerSpec) -> dict[str, Any]:
    """Return the options of a TrainerSpec by MXNet's names; those of a user's own optimizer as they are."""
    class_ = mx.optimizer.Optimizer.opt_registry.get(str(spec.optimizer).lower())
    aliases = ALIASES if getattr(class_, "__module__", "").startswith(KNOWN) else {}
    return {aliases.get(name, name): value for name, value in (spec.optimizer_params or {}).items()}


def _build(where: str, class_: Any, options: dict[str, Any], scheduler: Any) -> tuple[Any, list[str]]:
    name, stock = class_.__name__.lower(), class_.__module__.startswith(KNOWN)
    takes = {each for base in class_.__mro__ for each in signature(base.__init__).parameters} - NO_OPTIONS
    if stock and (messages := option_messages(where, name, options, takes, LIMITS, ALIASES)):
        return None, messages
    scheduler = options.get("lr_scheduler") if scheduler is None else scheduler
    try:
        if scheduler is not None:
            # it has state, so each trainer gets its own
            options["lr_scheduler"] = with_base_rate(scheduler, options.get("learning_rate"))
            options.setdefault("learning_rate", scheduler.base_lr)
        return class_(**options), []
    except Exception as error:
        if not stock:
            note_call(error, f"{where}: {name}, called with {shown(options)}")
            raise
        why = f"{type(error).__name__}: {last_line(error)}"
        return None, [f"{where}: {name} does not take {shown(options)}: {why}"]


def _schedule_messages(where: str, spec: TrainerSpec) -> list[str]:
    options = spec.optimizer_params if isinstance(spec.optimizer_params, Mapping) else {}
    messages, schedules = [], [spec.lr_scheduler, options.get("lr_scheduler")]
    if "lr_scheduler" in options and spec.lr_scheduler is not None:
        messages.append(f"{where}: lr_scheduler is given twice; leave it out of optimizer_params")
    for schedule in schedules:
        if schedule is not None and not (callable(schedule) and hasattr(schedule, "base_lr")):
            way_out = "give an instance, such as mx.lr_scheduler.FactorScheduler(step=1000, base_lr=1e-3)"
            messages.append(f"{where}: lr_scheduler is {shown(schedule)}; {way_out}")
    return messages


def _unknown(where: str, optimizer: object) -> str:
    valid = sorted(set(mx.optimizer.Optimizer.opt_registry) - {"test"})
    near = suggest(optimizer.lower(), valid) if isinstance(optimizer, str) else ""
    if isinstance(optimizer, type) and issubclass(optimizer, mx.optimizer.Optimizer):
        near = f' (did you mean "{optimizer.__name__.lower()}"?)'
    return f"{where}: there is no optimizer {shown(optimizer)}{near}; valid are {quoted(valid)}"
