"""Resolving the names that losses and metrics declare to references, in the order of their arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping, Sequence

from ..errors import names, suggest
from .names import LOSSES, OUTPUTS, PLURAL, SINGULAR, SLOTS, Ref, listed, resolve
from .specs import LossSpec, MetricSpec
from .terms import MetricTerm, Term

Spaces = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Resolution:
    """Losses and metrics with their references, and a message for every name that is not valid."""

    terms: tuple[Term, ...]
    metric_terms: tuple[MetricTerm, ...]
    messages: tuple[str, ...]


def resolve_terms(
    losses: Mapping[str, LossSpec],
    metrics: Mapping[str, MetricSpec],
    outputs: Sequence[str],
    slots: Sequence[str],
) -> Resolution:
    """Resolve the names of all losses and metrics: terms with whatever could be resolved."""
    spaces = {OUTPUTS: outputs, SLOTS: slots}
    messages: list[str] = []
    terms = [_loss(key, loss, spaces, messages) for key, loss in losses.items()]
    figures = [figure for term in terms for figure in term.figures]
    metric_terms = [_metric(key, metric, spaces, figures, messages) for key, metric in metrics.items()]
    return Resolution(tuple(terms), tuple(metric_terms), tuple(messages))


def _loss(key: str, spec: LossSpec, spaces: Spaces, messages: list[str]) -> Term:
    args, problems = _arguments(key, spec, spaces, only_output=spec.fn is None)
    messages += [f'losses["{key}"]: {problem}' for problem in problems]
    parts = tuple(part for part in listed(spec.returns) if isinstance(part, str)) or ("",)
    known = isinstance(spec.minimize, str) and spec.minimize in parts
    return Term(key, spec, args, parts, parts.index(spec.minimize) if known else 0)


def _metric(
    key: str, spec: MetricSpec, spaces: Spaces, figures: Sequence[str], messages: list[str]
) -> MetricTerm:
    args: tuple[Ref, ...] = ()
    problems: list[str] = []
    if spec.losses is None or any(value is not None for value in (spec.outputs, spec.labels, spec.arguments)):
        args, problems = _arguments(key, spec, spaces)
    for name in listed(spec.losses):
        problems += _resolved(name, {LOSSES: figures})[1]
    messages += [f'metrics["{key}"]: {problem}' for problem in problems]
    return MetricTerm(key, spec, args, listed(spec.losses))


def _arguments(
    key: str, spec: LossSpec | MetricSpec, spaces: Spaces, only_output: bool = False
) -> tuple[tuple[Ref, ...], list[str]]:
    outputs, labels = spec.outputs, spec.labels
    takes_losses = bool(listed(getattr(spec, "losses", None)))
    if outputs is None and labels is None and spec.arguments is None:
        return _named_like_key(key, {OUTPUTS: spaces[OUTPUTS]} if only_output else spaces)
    if outputs is None and labels is None:
        args, problems = _in_order(spec.arguments, spaces)
    else:
        if outputs is None and not takes_losses:
            outputs = key
        args, problems = _outputs_then_labels(outputs, labels, spaces)
        if spec.arguments is not None and not problems:
            args, problems = _reordered(args, spec.arguments)
    if not args and not problems and not takes_losses:
        problems = ["takes nothing; name what it takes with outputs= and labels="]
    return args, problems


def _named_like_key(key: str, spaces: Spaces) -> tuple[tuple[Ref, ...], list[str]]:
    """Resolve a loss or metric without names: it takes the output and the label that have its key."""
    args = tuple(Ref(space, key) for space, valid in spaces.items() if key in valid)
    missing = [space for space, valid in spaces.items() if key not in valid]
    if not missing:
        return args, []
    valid = "; ".join(f"{PLURAL[space]} are {names(spaces[space])}" for space in missing)
    near = suggest(key, [name for space in missing for name in spaces[space]])
    what = " and no ".join(SINGULAR[space] for space in missing)
    fields = " and ".join(f"{space}=" for space in missing)
    return args, [
        f'there is no {what} "{key}"{near}; {valid}; declare it, or name what it takes with {fields}'
    ]


def _outputs_then_labels(outputs: Any, labels: Any, spaces: Spaces) -> tuple[tuple[Ref, ...], list[str]]:
    args: list[Ref] = []
    problems: list[str] = []
    for space, declared in ((OUTPUTS, outputs), (SLOTS, labels)):
        for name in listed(declared):
            refs, wrong = _resolved(name, {space: spaces[space]})
            args += refs
            problems += wrong
    return tuple(args), problems


def _in_order(arguments: Any, spaces: Spaces) -> tuple[tuple[Ref, ...], list[str]]:
    args: list[Ref] = []
    problems: list[str] = []
    for name in listed(arguments):
        refs, wrong = _resolved(name, spaces)
        problems += wrong
        if len(refs) > 1:
            qualified = " or ".join(f'"{ref}"' for ref in refs)
            problems.append(f'"{name}" is an output and a label; write {qualified} in arguments')
        args += refs[:1]
    return tuple(args), problems


def _reordered(args: tuple[Ref, ...], order: Any) -> tuple[tuple[Ref, ...], list[str]]:
    spaces = {space: [ref.name for ref in args if ref.space == space] for space in (OUTPUTS, SLOTS)}
    ordered, problems = _in_order(order, spaces)
    missing = ", ".join(f'"{ref}"' for ref in args if ref not in ordered)
    if missing and not problems:
        problems = [f"arguments= must name every output and label that it takes; {missing} missing"]
    return (args if problems else ordered), problems


def _resolved(name: Any, spaces: Spaces) -> tuple[list[Ref], list[str]]:
    refs, problem = resolve(name, spaces)
    return refs, [problem] if problem else []
