"""Resolving the names that losses and metrics declare to references, in the order of their arguments."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Mapping, Sequence

from ..arguments import is_finite_number
from ..errors import quoted, suggest
from .names import LABELS, LOSSES, OUTPUTS, PLURAL, SINGULAR, Ref, listed, resolve
from .specs import LossSpec, MetricSpec
from .terms import MatchedAnchors, MetricTerm, Term, is_multi_box

Spaces = Mapping[str, Sequence[str]]


def resolve_terms(
    losses: Mapping[str, LossSpec],
    metrics: Mapping[str, MetricSpec],
    outputs: Sequence[str],
    slots: Sequence[str],
    labels: Sequence[str],
) -> tuple[tuple[Term, ...], tuple[MetricTerm, ...], list[str]]:
    """Return all losses and metrics with the names that could be resolved, and messages about the others.

    `slots` are the labels and the inputs.
    """
    messages: list[str] = []
    spaces = {OUTPUTS: outputs, LABELS: slots}
    terms = [_Resolver("losses", key, spaces, messages).loss(spec) for key, spec in losses.items()]
    spaces[LOSSES] = [figure for term in terms for figure in term.figures]
    only = {space: names for space, names in ((OUTPUTS, outputs), (LABELS, labels)) if len(names) == 1}
    metric_terms = [_Resolver("metrics", key, spaces, messages, only).metric(m) for key, m in metrics.items()]
    return tuple(terms), tuple(metric_terms), messages


class _Resolver:
    """Resolves the names of one loss or metric, and appends a message to `messages` for each problem."""

    def __init__(
        self, field: str, key: str, spaces: Spaces, messages: list[str], only: Spaces | None = None
    ) -> None:
        self.where, self.key, self.spaces, self.messages = f'{field}["{key}"]', key, spaces, messages
        self._only = only or {}  # the names to take where none is like the key

    def loss(self, spec: LossSpec) -> Term:
        """Return a loss with resolved arguments, a float as weight, and a slot's bare name as normalizer.

        A function as weight or normalizer stays as it is.
        """
        args = self._arguments(spec, False, (OUTPUTS,) if spec.fn is None else (OUTPUTS, LABELS))
        by, weight = spec.normalize_by, spec.weight
        if by is not None and not callable(by):
            by = next((ref.name for ref in self._refs(by, LABELS, field="normalize_by: ")), None)
        if by is None and is_multi_box(spec.fn) and len(args) == 4:
            by = MatchedAnchors(args[2].name, least=int(spec.fn._min_hard_negatives > 0))  # type: ignore
        if not callable(weight) and is_finite_number(weight):
            weight = float(weight)
        parts = tuple(part for part in listed(spec.returns) if isinstance(part, str)) or ("",)
        known = isinstance(spec.minimize, str) and spec.minimize in parts
        minimized = parts.index(spec.minimize) if known else 0
        return Term(
            self.key, replace(spec, weight=weight, normalize_by=by), args, parts=parts, minimized=minimized
        )

    def metric(self, spec: MetricSpec) -> MetricTerm:
        """Return a metric with resolved arguments and losses."""
        losses = [ref.name for name in listed(spec.losses) for ref in self._refs(name, LOSSES)]
        args: tuple[Ref, ...] = ()
        takes_losses = bool(listed(spec.losses))
        if not takes_losses or any(
            value is not None for value in (spec.outputs, spec.labels, spec.arguments)
        ):
            args = self._arguments(spec, takes_losses, (OUTPUTS, LABELS))
        return MetricTerm(self.key, spec, args, losses=tuple(losses))

    def _arguments(
        self, spec: LossSpec | MetricSpec, takes_losses: bool, defaults: Sequence[str]
    ) -> tuple[Ref, ...]:
        known = len(self.messages)
        if spec.outputs is None and spec.labels is None:
            if spec.arguments is None:
                return self._named_like_key(defaults)
            args = self._in_order(spec.arguments, self.spaces)
        else:
            outputs = self.key if spec.outputs is None and not takes_losses else spec.outputs
            args = [ref for name in listed(outputs) for ref in self._refs(name, OUTPUTS)]
            args += [ref for name in listed(spec.labels) for ref in self._refs(name, LABELS)]
            if spec.arguments is not None and len(self.messages) == known:
                args = self._reordered(args, spec.arguments)
        if not args and not takes_losses and len(self.messages) == known:
            self._report("takes nothing; name what it takes with outputs= and labels=")
        return tuple(args)

    def _named_like_key(self, spaces: Sequence[str]) -> tuple[Ref, ...]:
        """Return the default arguments of a loss or metric: the output and the label named like its key."""
        names = dict.fromkeys(spaces, self.key)
        names.update(
            {
                space: self._only[space][0]
                for space in spaces
                if self.key not in self.spaces[space] and space in self._only
            }
        )
        missing = [space for space in spaces if names[space] not in self.spaces[space]]
        if missing:
            valid = "; ".join(f"{PLURAL[space]} are {quoted(self.spaces[space])}" for space in missing)
            near = suggest(self.key, [name for space in missing for name in self.spaces[space]])
            what = " and no ".join(SINGULAR[space] for space in missing)
            fields = " and ".join(f"{space}=" for space in missing)
            self._report(
                f'there is no {what} "{self.key}"{near}; {valid}; '
                f"declare it, or name what it takes with {fields}"
            )
        return tuple(Ref(space, names[space]) for space in spaces if space not in missing)

    def _in_order(self, arguments: Any, spaces: Spaces) -> list[Ref]:
        args: list[Ref] = []
        for name in listed(arguments):
            refs = self._refs(name, OUTPUTS, LABELS, within=spaces)
            if len(refs) > 1:
                qualified = " or ".join(f'"{ref}"' for ref in refs)
                self._report(f'"{name}" is an output and a label; write {qualified} in arguments')
            args += refs[:1]
        return args

    def _reordered(self, args: list[Ref], order: Any) -> list[Ref]:
        known = len(self.messages)
        taken = {space: [ref.name for ref in args if ref.space == space] for space in (OUTPUTS, LABELS)}
        ordered = self._in_order(order, taken)
        missing = ", ".join(f'"{ref}"' for ref in args if ref not in ordered)
        if missing and len(self.messages) == known:
            self._report(f"arguments= must name every output and label that it takes; {missing} missing")
        return args if missing else ordered

    def _refs(self, name: object, *spaces: str, field: str = "", within: Spaces | None = None) -> list[Ref]:
        valid = self.spaces if within is None else within
        refs, problem = resolve(name, {space: valid[space] for space in spaces})
        if problem:
            self._report(field + problem)
        return refs

    def _report(self, problem: str) -> None:
        self.messages.append(f"{self.where}: {problem}")
