"""Compare the identities of two runs, as trees."""

from __future__ import annotations

import json
from typing import Any, Mapping

from ...errors import suggest

_SHOWN = 6  # differences in parameters, of which there can be thousands
_LONGEST = 160  # characters of a value
# In these sections, keys are names that the user chose; in all others, they are fields.
_NAMED = {"handlers", "holds", "labels", "losses", "metrics", "options", "parameters", "summary", "trainers"}


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
    parameters = {
        name: {**parameter, "shape": _known_shape(parameter["shape"], saved["parameters"].get(name))}
        for name, parameter in now["parameters"].items()
    }
    both = dict(saved["trainers"]), dict(now["trainers"])
    for name in both[0].keys() & both[1].keys():
        options_known = all(trainers[name].get("options") is not None for trainers in both)
        for trainers in both:
            # the order in which a trainer holds its parameters does not matter
            trainers[name] = {**trainers[name], "holds": {each: {} for each in trainers[name]["holds"]}}
            if not options_known:
                trainers[name].pop("options", None)
    return {**saved, "trainers": both[0]}, {**now, "parameters": parameters, "trainers": both[1]}


def _known_shape(shape: list[int], saved: Mapping[str, Any] | None) -> list[int]:
    """Return a shape in which sizes that no batch has determined yet are those of the checkpoint."""
    if saved is None or len(saved["shape"]) != len(shape):
        return shape
    return [known if size in (0, -1) else size for size, known in zip(shape, saved["shape"])]


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
