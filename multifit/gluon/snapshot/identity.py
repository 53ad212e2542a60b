"""Describe a run as a JSON tree, its identity; a checkpoint of a run with another identity is refused."""

from __future__ import annotations

import math
import numbers
from typing import Any, Mapping

import numpy as np

from ...sampling import TaskLoaders
from ...spec import LossSpec, MetricSpec, TaskSpec
from ...spec.names import listed
from ...spec.stage_plan import function_name
from ...spec.terms import MetricTerm, Term
from ..balance.make import AnyBalancer
from ..compat import mx
from ..engine import Engine
from ..optim.schedules import ScaledSchedule


def identity(engine: Engine) -> dict[str, Any]:
    """Return the identity of a run: its spec, parameters, trainers, devices, precision, balance, loaders."""
    trainers = engine.trainers.get()
    return {
        "spec": spec_tree(engine.spec),
        "parameters": {name: _parameter(parameter) for name, parameter in engine.model.parameters.items()},
        "trainers": {
            name: {
                "optimizer": type(trainer.optimizer).__name__,
                "options": _options(trainers.options.get(name)),
                "schedule": _schedule(trainer.optimizer.lr_scheduler),
                "clip_norm": plain(trainers.clip_norms.get(name)),
                "holds": list(trainers.parameters[name]),
                **(trainers.rhythms[name]._asdict() if name in trainers.rhythms else {}),
            }
            for name, trainer in trainers.items()
        },
        "devices": len(engine.model.contexts),
        "precision": engine.model.precision.name,
        **({} if engine.balancer is None else {"balance": _balance(engine.balancer)}),
        **({} if engine.loaders is None else {"loaders": _loaders(engine.loaders)}),
    }


def spec_tree(spec: TaskSpec) -> dict[str, Any]:
    """Return the declarations of a spec that belong to a run's identity; functions by their names."""
    return {
        "inputs": list(spec.inputs),
        "outputs": plain(spec.outputs),
        "labels": {
            name: {key: plain(getattr(label, key)) for key in ("dtype", "classes", "ignore", "missing")}
            for name, label in spec.label_specs.items()
        },
        "losses": {term.key: _loss(term, term.spec) for term in spec.terms},
        "metrics": {term.key: _metric(term, term.spec) for term in spec.metric_terms},
        "evaluate": {} if spec.evaluate is None else spec_tree(spec.evaluate),
        **({"state": plain(spec.state)} if spec.state else {}),
    }


def plain(value: Any) -> Any:
    """Return a declared value as JSON; a function or another object by its name."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        number = float(value)
        return number if math.isfinite(number) else repr(number)  # a NaN would differ from itself
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    return "..." if value is Ellipsis else {"function": function_name(value)}


def _loss(term: Term, spec: LossSpec) -> dict[str, Any]:
    parts = [part for part in term.parts if part]
    return {
        "fn": None if spec.fn is None else function_name(spec.fn),
        "takes": [str(ref) for ref in term.args],
        "weight": plain(spec.weight),
        "parts": parts,
        "minimize": parts[term.minimized] if parts else None,
        "normalize_by": plain(spec.normalize_by),
        "scope": spec.scope,
        **({"trainers": sorted(term.trainers)} if term.trainers else {}),
    }


def _metric(term: MetricTerm, spec: MetricSpec) -> dict[str, Any]:
    return {
        "metric": function_name(spec.metric),
        "takes": [str(ref) for ref in term.args],
        "losses": list(term.losses),
        "stages": list(listed(spec.stage)),
        "mode": spec.mode,
        "transform": plain(spec.transform),
        "names": list(listed(spec.names)),
    }


def _balance(balancer: AnyBalancer) -> dict[str, Any]:
    method = balancer.method
    options = {name: plain(value) for name, value in sorted(vars(method).items()) if name[0] != "_"}
    return {"method": type(method).__name__, "options": options, "tasks": list(balancer.tasks.names)}


def _loaders(loaders: TaskLoaders) -> dict[str, Any]:
    options = {name: plain(value) for name, value in sorted(vars(loaders.sampling).items()) if name[0] != "_"}
    return {"sampling": type(loaders.sampling).__name__, "options": options, "batches": loaders.sizes}


def _parameter(parameter: mx.gluon.Parameter) -> dict[str, Any]:
    shape, dtype = parameter.shape, np.dtype(parameter.dtype)
    if shape is None:  # a SymbolBlock's parameter does not know its own
        shape = () if parameter._data is None else parameter._data[0].shape
    return {"shape": list(shape), "dtype": dtype.names[0] if dtype.names else dtype.name}  # bfloat16: a field


def _options(options: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return declared options; None for an optimizer that the user built."""
    if options is None:
        return None
    return {key: plain(value) for key, value in options.items() if key != "lr_scheduler"}


def _schedule(scheduler: mx.lr_scheduler.LRScheduler | None) -> str | None:
    if isinstance(scheduler, ScaledSchedule):  # added when the rate is set during the run
        scheduler = scheduler.scheduler
    return None if scheduler is None else type(scheduler).__name__
