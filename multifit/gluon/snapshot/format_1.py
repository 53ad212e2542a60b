"""Identities in checkpoints of format 1, which hold the spec as the lines of its printed summary.

Do not change the wording here: it is what multifit printed when it wrote such checkpoints.
"""

from __future__ import annotations

import re
from typing import Any, Iterable, Iterator, Mapping

_EVALUATING = "when evaluating and predicting:"


def is_format_1(saved: Mapping[str, Any]) -> bool:
    """Whether an identity is from a checkpoint of format 1."""
    return isinstance(saved["spec"], list)


def upgraded(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return an identity of format 1 as a tree in which each line of the summary is a key."""
    return {
        "precision": "float32",  # the only one when the first checkpoints were written
        **saved,
        "spec": {"summary": {line: {} for line in _lines(saved["spec"])}},
    }


def known_to_format_1(now: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a present identity that format 1 could store, in the form of :func:`upgraded`."""
    return {
        **now,
        "spec": {"summary": {line: {} for line in _printed(now["spec"])}},
        "trainers": {
            name: {key: trainer[key] for key in ("optimizer", "schedule", "holds")}
            for name, trainer in now["trainers"].items()
        },
    }


def _lines(summary: Iterable[str]) -> Iterator[str]:
    """Yield the rows of a printed summary, with two spaces between cells."""
    prefix, is_row = "", False
    for line in summary:
        if line == _EVALUATING:
            prefix, is_row = f"{prefix}{_EVALUATING} ", False
        elif line and set(line) <= {"-", " "}:  # the rule below the titles
            is_row = True
        elif line and is_row:
            yield prefix + re.sub(" {2,}", "  ", line)


def _printed(spec: Mapping[str, Any]) -> list[str]:
    """Return the lines that :func:`_lines` yields, for a spec's tree."""
    rows = [("input", name, "net") for name in spec["inputs"]]
    rows += [("output", name, _users(spec, f"outputs.{name}")) for name in _flat(spec["outputs"])]
    rows += [("label", name, _users(spec, f"labels.{name}")) for name in spec["labels"]]
    rows += [("loss", key, _loss(loss)) for key, loss in spec["losses"].items()]
    rows += [("metric", key, _metric(metric)) for key, metric in spec["metrics"].items()]
    lines = [re.sub(" {2,}", "  ", "  ".join(row)) for row in rows]
    evaluate = _printed(spec["evaluate"]) if spec["evaluate"] else []
    return lines + [f"{_EVALUATING} {line}" for line in evaluate]


def _flat(outputs: Any) -> Iterator[str]:
    for item in outputs:
        if isinstance(item, list):
            yield from _flat(item)
        elif item != "...":
            yield item


def _users(spec: Mapping[str, Any], ref: str) -> str:
    users = [
        f'{kind}["{key}"]'
        for kind in ("losses", "metrics")
        for key, term in spec[kind].items()
        if ref in term["takes"]
    ]
    users += [
        f'normalizer of losses["{key}"]'
        for key, loss in spec["losses"].items()
        if isinstance(loss["normalize_by"], str) and ref == f"labels.{loss['normalize_by']}"
    ]
    return ", ".join(users) or "unused"


def _loss(loss: Mapping[str, Any]) -> str:
    weight, divisor = loss["weight"], loss["normalize_by"]
    factor = f"{weight['function']}(state)" if isinstance(weight, Mapping) else f"{weight:g}"
    by = f" / {divisor}" if isinstance(divisor, str) else " / a function of the slots" if divisor else ""
    parts = f" -> {', '.join(loss['parts'])}; minimizes {loss['minimize']}" if loss["parts"] else ""
    return f"{factor} x {_call(loss['fn'], loss['takes'])}{by}{parts}"


def _metric(metric: Mapping[str, Any]) -> str:
    called = _call(metric["metric"], [*metric["takes"], *metric["losses"]])
    return f"{called} ({', '.join(metric['stages'])})"


def _call(fn: str | None, arguments: Iterable[str]) -> str:
    return f"{'the output' if fn is None else fn}({', '.join(arguments)})"
