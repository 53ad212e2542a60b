"""Losses and metrics with their names resolved: what exactly each of them is fed, in order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping, Sequence

from ..errors import Problem, names, suggest
from .names import LOSSES, OUTPUTS, PLURAL, SINGULAR, SLOTS, Ref, listed, resolve
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
    """A metric with its arguments; `losses` are figures of losses that it is fed in place of outputs."""

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
    parts = tuple(part for part in listed(spec.returns) if isinstance(part, str)) or ("",)
    minimized = 0
    if isinstance(spec.minimize, str) and spec.minimize in parts:
        minimized = parts.index(spec.minimize)
    return Term(key, spec, args, parts, minimized), problems


def resolve_metric(
    key: str, spec: MetricSpec, spaces: Mapping[str, Sequence[str]], losses: Sequence[str]
) -> tuple[MetricTerm, list[Problem]]:
    """Resolve the names of one metric; `losses` are the figures of losses that it may be fed."""
    where = f'metrics["{key}"]'
    args: tuple[Ref, ...] = ()
    problems: list[Problem] = []
    if spec.losses is None or any(value is not None for value in (spec.outputs, spec.labels, spec.arguments)):
        args, problems = _arguments(where, key, spec, spaces)
    for name in listed(spec.losses):
        problems += _unknown(where, name, {LOSSES: losses})[1]
    return MetricTerm(key, spec, args, listed(spec.losses)), problems


def _arguments(
    where: str, key: str, spec: Any, spaces: Mapping[str, Sequence[str]]
) -> tuple[tuple[Ref, ...], list[Problem]]:
    outputs, labels = spec.outputs, spec.labels
    if outputs is None and labels is None and spec.arguments is None:
        return _of_its_key(where, key, spaces, OUTPUTS if getattr(spec, "fn", key) is None else None)
    if outputs is None and labels is None:
        args, problems = _ordered(where, spec.arguments, spaces)
    else:
        if outputs is None and not getattr(spec, "losses", None):
            outputs = key
        args, problems = _listed_refs(where, outputs, labels, spaces)
        if spec.arguments is not None and not problems:
            args, problems = _reordered(where, args, spec.arguments)
    if not args and not problems and not getattr(spec, "losses", None):
        problems = [Problem("spec", f"{where}: takes nothing; name what it takes with outputs= and labels=")]
    return args, problems


def _reordered(where: str, args: tuple[Ref, ...], order: Any) -> tuple[tuple[Ref, ...], list[Problem]]:
    spaces = {space: [ref.name for ref in args if ref.space == space] for space in (OUTPUTS, SLOTS)}
    ordered, problems = _ordered(where, order, spaces)
    missing = ", ".join(f'"{ref}"' for ref in args if ref not in ordered)
    if missing and not problems:
        message = f"{where}: arguments= must name every output and label that it takes; {missing} missing"
        problems = [Problem("spec", message)]
    return (args if problems else ordered), problems


def _of_its_key(
    where: str, key: str, spaces: Mapping[str, Sequence[str]], only: str | None
) -> tuple[tuple[Ref, ...], list[Problem]]:
    """Resolve a loss or metric that names nothing: the output and the label that bear its key."""
    wanted = [space for space in spaces if only in (None, space)]
    args = tuple(Ref(space, key) for space in wanted if key in spaces[space])
    missing = [space for space in wanted if key not in spaces[space]]
    if not missing:
        return args, []
    valid = "; ".join(f"{PLURAL[space]} are {names(spaces[space])}" for space in missing)
    near = suggest(key, [name for space in missing for name in spaces[space]])
    what = " and no ".join(SINGULAR[space] for space in missing)
    fields = " and ".join(f"{space}=" for space in missing)
    way = f"declare it, or name what it takes with {fields}"
    return args, [Problem("spec", f'{where}: there is no {what} "{key}"{near}; {valid}; {way}')]


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
