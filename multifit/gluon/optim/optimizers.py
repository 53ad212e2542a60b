"""Build the optimizer of a TrainerSpec, and find all mistakes in its options."""

from __future__ import annotations

import copy
import inspect
from types import SimpleNamespace
from typing import Any, Iterable, Mapping

import numpy as np

from ...arguments import Count, NotNegative, Share, as_float, checked_value, is_finite_number
from ...errors import Problem, counted, last_line, note_call, quoted, shown, suggest
from ...spec import TrainerSpec
from ..compat import mx
from .schedules import with_base_rate

MATRIX = (2, 2)  # the shape of an array to try an optimizer on
KNOWN = ("mxnet.", "gluonnlp.")  # modules of optimizers whose options are known
# The valid values of some options of MXNet's optimizers. Other numeric options must be finite.
LIMITS: dict[str, Any] = {
    **dict.fromkeys(("learning_rate", "wd", "epsilon", "eps"), NotNegative),
    **dict.fromkeys(("momentum", "beta1", "beta2", "gamma1", "gamma2", "rho"), Share),
}
INTERNAL = {"self", "param_idx2name", "sym", "param_dict", "begin_num_update"}


def build_optimizer(
    where: str, declared: TrainerSpec | mx.gluon.Trainer, parameters: Iterable[mx.gluon.Parameter]
) -> tuple[mx.optimizer.Optimizer | None, list[Problem]]:
    """Return the optimizer of a TrainerSpec or gluon.Trainer, and the problems; None if it cannot be built.

    `where` is the trainer's name in messages; `parameters` are those that it updates. A step of the optimizer
    is tried out; the optimizer of a gluon.Trainer is otherwise not checked.
    """
    messages: list[str] = []
    if isinstance(declared, mx.gluon.Trainer):
        optimizer = declared.optimizer
    else:
        optimizer, messages = _from_spec(where, declared)
    kinds = dict.fromkeys(map(_kind, parameters)) or [("default", "default", len(MATRIX), "float32")]
    for kind in kinds:
        messages = messages or _try_step(where, optimizer, *kind)
    return optimizer, [Problem("trainer", message) for message in messages]


def _from_spec(where: str, spec: TrainerSpec) -> tuple[Any, list[str]]:
    messages = _clip_norm_problems(where, spec.clip_norm) + _scheduler_problems(where, spec.lr_scheduler)
    messages += _value_problems(f"{where}: every", spec.every, Count)
    messages += _value_problems(f"{where}: accumulate", spec.accumulate, bool)
    if spec.optimizer_params is not None and not isinstance(spec.optimizer_params, Mapping):
        way_out = 'give a dict, such as {"learning_rate": 1e-3}'
        return None, [*messages, f"{where}: optimizer_params is {shown(spec.optimizer_params)}; {way_out}"]
    options = dict(spec.optimizer_params or {})
    if isinstance(spec.optimizer, mx.optimizer.Optimizer):
        if options or spec.lr_scheduler is not None:
            way_out = "give its name to set optimizer_params or lr_scheduler"
            messages.append(f"{where}: an optimizer object has its options already; {way_out}")
        return _copied(where, spec.optimizer, messages)
    known = mx.optimizer.Optimizer.opt_registry
    kind = known.get(spec.optimizer.lower()) if isinstance(spec.optimizer, str) else None
    if kind in (None, mx.optimizer.Test):  # a dummy, which adds gradients instead
        return None, [*messages, _unknown(where, spec.optimizer)]
    messages += _option_problems(where, kind, options, spec.lr_scheduler)
    return (None, messages) if messages else _build(where, kind, options, spec.lr_scheduler)


def _copied(where: str, optimizer: Any, messages: list[str]) -> tuple[Any, list[str]]:
    """Return a copy of an optimizer object, whose counts would else go on with the next estimator."""
    try:
        return copy.deepcopy(optimizer), messages  # without its parameters
    except Exception as error:
        why = f"{type(error).__name__}: {last_line(error)}"
        return None, [*messages, f"{where}: {type(optimizer).__name__} cannot be copied: {why}"]


def _build(where: str, kind: Any, options: dict[str, Any], scheduler: Any) -> tuple[Any, list[str]]:
    scheduler = options.get("lr_scheduler") if scheduler is None else scheduler
    try:
        if scheduler is not None:
            # it has state, so each trainer gets its own
            options["lr_scheduler"] = with_base_rate(scheduler, options.get("learning_rate"))
            options.setdefault("learning_rate", scheduler.base_lr)
        return kind(**options), []
    except Exception as error:
        if not kind.__module__.startswith(KNOWN):
            note_call(error, f"{where}: {kind.__name__.lower()}, called with {shown(options)}")
            raise
        why = f"{type(error).__name__}: {last_line(error)}"
        return None, [f"{where}: {kind.__name__.lower()} does not take {shown(options)}: {why}"]


def _unknown(where: str, optimizer: object) -> str:
    valid = sorted(set(mx.optimizer.Optimizer.opt_registry) - {"test"})
    near = suggest(optimizer.lower(), valid) if isinstance(optimizer, str) else ""
    if isinstance(optimizer, type) and issubclass(optimizer, mx.optimizer.Optimizer):
        near = f' (did you mean "{optimizer.__name__.lower()}"?)'
    return f"{where}: there is no optimizer {shown(optimizer)}{near}; valid are {quoted(valid)}"


def _option_problems(where: str, kind: Any, options: Mapping[str, Any], scheduler: Any) -> list[str]:
    valid: dict[str, Any] = {}  # options and their defaults
    for base in reversed(kind.__mro__[:-1]):
        parameters = inspect.signature(base.__init__).parameters.values()
        default = {p.name: p.default for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD}
        # a user's own optimizer may take anything in place of a number
        valid.update(default if base.__module__.startswith(KNOWN) else dict.fromkeys(default))
    for name in INTERNAL:
        valid.pop(name, None)
    messages = [
        f"{where}: {kind.__name__.lower()} has no option {shown(name)}{suggest(name, sorted(valid))}; "
        f"valid are {quoted(sorted(valid))}"
        for name in options
        if name not in valid
    ]
    for name, value in options.items():
        if name == "learning_rate" or is_finite_number(valid.get(name)):
            messages += _value_problems(f"{where}: {name}", value, LIMITS.get(name, float))
    if "lr_scheduler" in options and scheduler is not None:
        messages.append(f"{where}: lr_scheduler is given twice; leave it out of optimizer_params")
    return messages + _scheduler_problems(where, options.get("lr_scheduler"))


def _kind(parameter: mx.gluon.Parameter) -> tuple[str, str, int, str]:
    """Return the properties that matter to an optimizer: storage types, number of axes and dtype."""
    dtype = np.dtype(parameter.dtype).name
    axes = len(parameter.shape or MATRIX)
    return parameter._stype, parameter._grad_stype, axes, dtype if dtype == "float64" else "float32"


def _try_step(
    where: str, optimizer: mx.optimizer.Optimizer, stype: str, grad_stype: str, axes: int, dtype: str
) -> list[str]:
    """Let a copy of the optimizer update a small array of one kind of parameter.

    An error in a real update would leave half of the parameters updated, and a kvstore, which updates sparse
    parameters, would even ignore it. Only optimizers of MXNet and gluonnlp are tried: a user's own may rely
    on its parameters.
    """
    if not type(optimizer).__module__.startswith(KNOWN):
        return []
    kind, ones = type(optimizer).__name__.lower(), mx.nd.ones((2,) * axes, dtype=dtype)
    weight, gradient = ones.tostype(stype), ones.tostype(grad_stype)
    try:
        twin = copy.deepcopy(optimizer)  # without its parameters
        if twin.lr_scheduler is not None:  # the user's code, whose exceptions are not those of the options
            twin.lr_scheduler, twin.lr = None, twin.lr_scheduler.base_lr
        twin.param_dict = {0: SimpleNamespace(lr_mult=1.0, wd_mult=1.0)}
        mx.optimizer.get_updater(twin)(0, gradient, weight)
        finite = bool(np.isfinite(weight.asnumpy()).all())
    except Exception as error:
        why = f"{type(error).__name__}: {last_line(error)}"
        on = "" if axes == len(MATRIX) else f" on a parameter of {counted(axes, 'axis', 'axes')}"
        on += " in float64" if dtype == "float64" else ""
        return [f"{where}: {kind} cannot make a step with its options{on}: {why}"]
    message = f"{where}: a step of {kind} with its options is not finite; change its optimizer_params"
    return [] if finite else [message]


def _scheduler_problems(where: str, scheduler: object) -> list[str]:
    if scheduler is None or (callable(scheduler) and hasattr(scheduler, "base_lr")):
        return []
    way_out = "give an instance, such as mx.lr_scheduler.FactorScheduler(step=1000, base_lr=1e-3)"
    return [f"{where}: lr_scheduler is {shown(scheduler)}; {way_out}"]


def _clip_norm_problems(where: str, norm: Any) -> list[str]:
    if norm is None or (is_finite_number(norm) and as_float(norm) > 0):
        return []
    return [f"{where}: clip_norm is {shown(norm)}; it must be a finite number above 0, or None"]


def _value_problems(where: str, value: object, hint: Any) -> list[str]:
    try:
        checked_value(where, value, hint)
    except ValueError as error:
        return [str(error)]
    return []
