"""Describe a run as a JSON tree, its identity, and compare two; a checkpoint of another run is refused."""

import json
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..sampling import TaskLoaders
from ..spec import LossSpec, MetricSpec, TaskSpec
from ..spec.plan import function_name
from ..spec.terms import MetricTerm, Term, listed
from ..utils.text import suggest

Parameters = Mapping[str, tuple[Sequence[int] | None, str]]
"""The shape and the dtype of each parameter; None for a shape that is not known yet."""

_SHOWN = 6  # differences in parameters, of which there can be thousands
_LONGEST = 160  # characters of a value
# In these sections, keys are names that the user chose; in all others, they are fields.
_NAMED = {"handlers", "holds", "labels", "losses", "metrics", "options", "parameters", "summary", "trainers"}


def run_identity(
    session: Any, parameters: Parameters, schedule_of: Callable[[Any], str | None]
) -> dict[str, Any]:
    """Return the identity of a run: its spec, parameters, trainers, devices, precision, balance, loaders.

    ``schedule_of(trainer)`` is the name of a trainer's schedule.
    """
    trainers = session.trainers.get()
    return {
        "spec": spec_tree(session.spec),
        "parameters": _as_json(parameters),
        "trainers": {
            name: {
                "optimizer": type(trainer.optimizer).__name__,
                "options": _options(trainers.options.get(name)),
                "schedule": schedule_of(trainer),
                "clip_norm": plain(trainers.clip_norms.get(name)),
                "holds": list(trainers.parameters[name]),
                **(trainers.rhythms[name]._asdict() if name in trainers.rhythms else {}),
            }
            for name, trainer in trainers.items()
        },
        "devices": len(session.model.contexts),
        "precision": session.model.precision.name,
        **({} if session.balancer is None else {"balance": _balance(session.balancer)}),
        **({} if session.loaders is None else {"loaders": _loaders(session.loaders)}),
    }


def _options(options: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return declared options; None for an optimizer that the user built."""
    if options is None:
        return None
    return {key: plain(value) for key, value in options.items() if key != "lr_scheduler"}


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
        "class_weights": plain(spec.class_weights),
        "sample_weight": spec.sample_weight,
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


def _balance(balancer: Any) -> dict[str, Any]:
    method = balancer.method
    options = {name: plain(value) for name, value in sorted(vars(method).items()) if name[0] != "_"}
    return {"method": type(method).__name__, "options": options, "tasks": list(balancer.tasks.names)}


def _loaders(loaders: TaskLoaders) -> dict[str, Any]:
    options = {name: plain(value) for name, value in sorted(vars(loaders.sampling).items()) if name[0] != "_"}
    return {"sampling": type(loaders.sampling).__name__, "options": options, "batches": loaders.sizes}


# ---- differences -------------------------------------------------------------------------------------------


def differences(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a line with path, saved value and present value for each difference between two identities.

    At most six differences in parameters are listed; one more line counts the rest.
    """
    return differing(*_comparable(saved, now), "in the checkpoint", "here")


def differing(one: Mapping[str, Any], other: Mapping[str, Any], there: str, here: str) -> list[str]:
    """Return a line for each difference between two trees of named sections.

    `there` and `here` say in the lines where `one` and `other` come from.
    """
    lines = []
    for key in {**one, **other}:
        path = "" if key == "spec" else key
        section = _compare(path, key in _NAMED, one.get(key), other.get(key), there, here)
        if key == "parameters" and len(section) > _SHOWN:
            section = [*section[:_SHOWN], f"parameters: {len(section) - _SHOWN} more differences"]
        lines += section
    return lines


def _comparable(
    saved: Mapping[str, Any], now: Mapping[str, Any]
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Leave out what cannot be compared: unknown sizes, and the options of a user's own trainer."""
    parameters = _known_parameters(saved["parameters"], now["parameters"])
    both = dict(saved["trainers"]), dict(now["trainers"])
    for name in both[0].keys() & both[1].keys():
        options_known = all(trainers[name].get("options") is not None for trainers in both)
        for trainers in both:
            # the order in which a trainer holds its parameters does not matter
            trainers[name] = {**trainers[name], "holds": {each: {} for each in trainers[name]["holds"]}}
            if not options_known:
                trainers[name].pop("options", None)
    return {**saved, "trainers": both[0]}, {**now, "parameters": parameters, "trainers": both[1]}


def parameter_differences(saved: Parameters, parameters: Parameters) -> list[str]:
    """Return a line for each difference between a file's arrays and the parameters that they are for."""
    there, here = _as_json(saved), _as_json(parameters)
    trees = {"parameters": there}, {"parameters": _known_parameters(there, here)}
    return differing(*trees, "in the file", "here")


def _as_json(parameters: Parameters) -> dict[str, Any]:
    return {
        name: {"shape": None if shape is None else list(shape), "dtype": dtype}
        for name, (shape, dtype) in parameters.items()
    }


def _known_parameters(saved: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters, in which sizes that no batch has determined yet are those of the checkpoint."""
    known = dict(now)
    for name in saved.keys() & now.keys():
        shape, there = now[name]["shape"], saved[name]["shape"]
        if shape is None:
            known[name] = {**now[name], "shape": there}
        elif there is not None and len(shape) == len(there):
            sizes = [other if size in (0, -1) else size for size, other in zip(shape, there)]
            known[name] = {**now[name], "shape": sizes}
    return known


def _compare(path: str, named: bool, saved: Any, now: Any, there: str, here: str) -> list[str]:
    if not (isinstance(saved, Mapping) and isinstance(now, Mapping)):
        same = isinstance(saved, bool) is isinstance(now, bool) and saved == now
        return [] if same else [f"{path}: {_shown(saved)}{there}, {_shown(now)}{here}"]
    only_saved = [key for key in saved if key not in now]
    only_now = [key for key in now if key not in saved]
    lines = []
    for key in [*saved, *only_now]:
        child = f'{path}["{key}"]' if named else f"{path}.{key}".lstrip(".")
        if key not in now:
            near = suggest(key, only_now)
            lines.append(f"{child}: {_shown(saved[key])}{there}, not {here}{near}")
        elif key not in saved:
            near = suggest(key, only_saved)
            lines.append(f"{child}: {_shown(now[key])}{here}, not {there}{near}")
        else:
            lines += _compare(child, key in _NAMED and not named, saved[key], now[key], there, here)
    return lines


def _shown(value: Any) -> str:
    if value == {}:  # a name without a value
        return ""
    text = json.dumps(value, ensure_ascii=False)
    return f"{text} " if len(text) <= _LONGEST else f"{text[:_LONGEST]}… "
