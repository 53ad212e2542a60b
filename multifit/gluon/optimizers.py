"""Optimizers from a TrainerSpec, with every mistake in their options told."""

from __future__ import annotations

import copy
import inspect
import math
from typing import Any

from ..errors import Problem, names, suggest
from ..spec import TrainerSpec
from .compat import mx

__all__ = ["build_optimizer"]


def build_optimizer(where: str, spec: TrainerSpec) -> tuple[Any, list[Problem]]:
    """Return the optimizer that a TrainerSpec declares, or what is wrong with it."""
    messages = _clip_norm(where, spec.clip_norm)
    options = dict(spec.optimizer_params or {})
    if isinstance(spec.optimizer, mx.optimizer.Optimizer):
        if options or spec.lr_scheduler is not None:
            messages.append(
                f"{where}: an optimizer object has its options already; give its name to set optimizer_params or lr_scheduler"
            )
        return spec.optimizer, _problems(messages)
    messages += _scheduler(where, spec.lr_scheduler)
    registry = mx.optimizer.Optimizer.opt_registry
    if not isinstance(spec.optimizer, str) or spec.optimizer.lower() not in registry:
        near = suggest(str(spec.optimizer).lower(), registry)
        messages.append(
            f"{where}: there is no optimizer {spec.optimizer!r}{near}; valid are {names(sorted(registry))}"
        )
        return None, _problems(messages)
    messages += _options(where, registry[spec.optimizer.lower()], options)
    if messages:
        return None, _problems(messages)
    if spec.lr_scheduler is not None:
        # a scheduler keeps state, so each trainer has its own; an optimizer overwrites its base_lr without being asked
        options.setdefault("learning_rate", spec.lr_scheduler.base_lr)
        options["lr_scheduler"] = copy.deepcopy(spec.lr_scheduler)
    try:
        return mx.optimizer.create(spec.optimizer, **options), []
    except (TypeError, ValueError, AssertionError, AttributeError) as error:
        return None, _problems([f"{where}: {spec.optimizer} does not take {options}: {error}"])


def _options(where: str, kind: Any, options: dict[str, Any]) -> list[str]:
    valid: list[str] = []
    for base in kind.__mro__:
        if base is not object:
            parameters = inspect.signature(base.__init__).parameters.values()
            valid += [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD and p.name != "self"]
    valid = sorted(set(valid) - {"param_idx2name", "sym", "param_dict", "begin_num_update"})
    messages = [
        f'{where}: {kind.__name__.lower()} has no option "{name}"{suggest(name, valid)}; valid are {names(valid)}'
        for name in options
        if name not in valid
    ]
    rate = options.get("learning_rate", 0.0)
    if not isinstance(rate, (int, float)) or not math.isfinite(rate) or rate < 0:
        messages.append(f"{where}: learning_rate is {rate!r}; it must be a finite number of at least 0")
    return messages


def _scheduler(where: str, scheduler: Any) -> list[str]:
    if scheduler is None or (callable(scheduler) and hasattr(scheduler, "base_lr")):
        return []
    return [f"{where}: lr_scheduler is {scheduler!r:.60}; give an mx.lr_scheduler.LRScheduler"]


def _clip_norm(where: str, norm: Any) -> list[str]:
    if norm is None or (isinstance(norm, (int, float)) and norm > 0):
        return []
    return [f"{where}: clip_norm is {norm!r}; it must be a number above 0, or None"]


def _problems(messages: list[str]) -> list[Problem]:
    return [Problem("trainer", message) for message in messages]
