"""Losses and metrics with their names resolved: what exactly each of them is fed, in order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping, Sequence

from ..errors import Problem
from .names import OUTPUTS, SLOTS, Ref, listed, resolve
from .parts import LossSpec, MetricSpec

__all__ = ["MetricTerm", "Term", "resolve_loss", "resolve_metric"]


@dataclass(frozen=True)
class Term:
    """A term of the objective: one loss with its arguments.

    `parts` are the names of what `fn` returns (one empty name where it returns a single array), `minimized`
    the index of the part that enters the objective.
    """

    key: str
    spec: LossSpec
    args: tuple[Ref, ...]
    parts: tuple[str, ...] = ("",)
    minimized: int = 0

    @property
    def where(self) -> str:
        """How messages name it."""
        return f'losses["{self.key}"]'

    @property
    def figures(self) -> list[str]:
        """Names of its figures: the term, then its parts."""
        return [self.key, *(f"{self.key}.{part}" for part in self.parts if part)]


@dataclass(frozen=True)
class MetricTerm:
    """A metric with its arguments; `losses` are figures of losses whose values are fed in place of outputs."""

    key: str
    spec: MetricSpec
    args: tuple[Ref, ...]
    losses: tuple[str, ...] = field(default=())

    @property
    def where(self) -> str:
        """How messages name it."""
        return f'metrics["{self.key}"]'

    @property
    def outputs(self) -> list[Ref]:
        """The arguments that are outputs."""
        return [ref for ref in self.args if ref.space == OUTPUTS]

    @property
    def labels(self) -> list[Ref]:
        """The arguments that are slots."""
        return [ref for ref in self.args if ref.space == SLOTS]


def resolve_loss(key: str, spec: LossSpec, spaces: Mapping[str, Sequence[str]]) -> tuple[Term, list[Problem]]:
    """Resolve the names of one loss; problems are told, and the term holds whatever could be resolved."""
    where = f'losses["{key}"]'
    args, problems = _arguments(where, key, spec, spaces)
    parts = listed(spec.returns) or ("",)
    minimized = 0
    if spec.minimize is not None and spec.minimize in parts:
        minimized = parts.index(spec.minimize)
    return Term(key, spec, args, parts, minimized), problems


def resolve_metric(
    key: str, spec: MetricSpec, spaces: Mapping[str, Sequence[str]], losses: Sequence[str]
) -> tuple[MetricTerm, list[Problem]]:
    """Resolve the names of one metric; `losses` are the figures of losses that it may be fed."""
    where = f'metrics["{key}"]'
    if spec.losses is not None and spec.outputs is None and spec.labels is None and spec.arguments is None:
        args, problems = (), []
    else:
        args, problems = _arguments(where, key, spec, spaces)
    for name in listed(spec.losses):
        problems += _unknown(where, name, {"losses": losses})[1]
    return MetricTerm(key, spec, args, listed(spec.losses)), problems


def _arguments(
    where: str, key: str, spec: Any, spaces: Mapping[str, Sequence[str]]
) -> tuple[tuple[Ref, ...], list[Problem]]:
    outputs, labels = spec.outputs, spec.labels
    if spec.arguments is not None and outputs is None and labels is None:
        return _ordered(where, spec.arguments, spaces)
    if outputs is None and labels is None:
        outputs, labels = key, () if getattr(spec, "fn", key) is None else key
        if key not in spaces[OUTPUTS] or (labels and key not in spaces[SLOTS]):
            return (), [Problem("spec", _no_names(where, key, spaces))]
    elif outputs is None and not getattr(spec, "losses", None):
        outputs = key
    args, problems = _listed_refs(where, outputs, labels, spaces)
    if spec.arguments is not None and not problems:
        ordered, problems = _ordered(
            where, spec.arguments, {s: [r.name for r in args if r.space == s] for s in spaces}
        )
        if not problems and set(ordered) != set(args):
            missing = ", ".join(str(ref) for ref in args if ref not in ordered)
            problems = [
                Problem("spec", f"{where}: arguments must name every output and label; {missing} is missing")
            ]
        args = ordered
    return args, problems


def _listed_refs(
    where: str, outputs: Any, labels: Any, spaces: Mapping[str, Sequence[str]]
) -> tuple[tuple[Ref, ...], list[Problem]]:
    args: list[Ref] = []
    problems: list[Problem] = []
    for space, value in ((OUTPUTS, outputs), (SLOTS, labels)):
        for name in listed(value):
            refs, found = _unknown(where, name, {space: spaces[space]})
            args += refs
            problems += found
    return tuple(args), problems


def _ordered(
    where: str, arguments: Any, spaces: Mapping[str, Sequence[str]]
) -> tuple[tuple[Ref, ...], list[Problem]]:
    args: list[Ref] = []
    problems: list[Problem] = []
    for name in listed(arguments):
        refs, found = _unknown(where, name, spaces)
        problems += found
        if len(refs) > 1:
            ways = " or ".join(f'"{ref}"' for ref in refs)
            problems.append(
                Problem("spec", f'{where}: "{name}" is an output and a label; write {ways} in arguments')
            )
        args += refs[:1]
    return tuple(args), problems


def _unknown(where: str, name: Any, spaces: Mapping[str, Sequence[str]]) -> tuple[list[Ref], list[Problem]]:
    refs, wrong = resolve(name, spaces)
    return refs, [Problem("spec", f"{where}: {wrong}")] if wrong else []


def _no_names(where: str, key: str, spaces: Mapping[str, Sequence[str]]) -> str:
    from ..errors import names, suggest

    near = suggest(key, [*spaces[OUTPUTS], *spaces[SLOTS]])
    return (
        f'{where} names no outputs and labels, and there is no output and label "{key}"{near}; '
        f"outputs are {names(spaces[OUTPUTS])}, labels are {names(spaces[SLOTS])}: name them with outputs= and labels="
    )
