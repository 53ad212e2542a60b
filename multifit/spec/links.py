"""Links: which output, slot or loss goes to which loss or metric."""

from __future__ import annotations

from typing import Collection, Iterable, Iterator, NamedTuple

from .declarations import Declarations
from .names import LABELS, OUTPUTS, Ref
from .terms import Taker

FEEDS, NORMALIZES = "feeds", "normalises"  # as plan.json spells them


class Link(NamedTuple):
    """One arrow, from an input, output, label or loss to a loss or metric."""

    what: str
    name: str
    to: str
    target: str
    how: str


def links(declarations: Declarations, metrics: Collection[str] | None = None) -> Iterator[Link]:
    """Yield every link of the losses, then of the metrics; `metrics` selects metrics by key, default all."""
    for term in declarations.terms:
        yield from _arguments(declarations, "loss", term)
        if isinstance(term.spec.normalize_by, str):
            slot = Ref(LABELS, term.spec.normalize_by)
            yield Link(_kind(declarations, slot), slot.name, "loss", term.key, NORMALIZES)
    for metric in declarations.metric_terms:
        if metrics is None or metric.key in metrics:
            yield from _arguments(declarations, "metric", metric)
            for figure in metric.losses:
                loss = next(term.key for term in declarations.terms if figure in term.figures)
                yield Link("loss", loss, "metric", metric.key, FEEDS)


def targets(all_links: Iterable[Link], what: str, name: str) -> list[Link]:
    """Return the links from one output, slot or loss, without repetition; those that feed come first."""
    leading = dict.fromkeys(link for link in all_links if (link.what, link.name) == (what, name))
    return sorted(leading, key=lambda link: link.how != FEEDS)


def _arguments(declarations: Declarations, to: str, taker: Taker) -> Iterator[Link]:
    for ref in taker.args:
        yield Link(_kind(declarations, ref), ref.name, to, taker.key, FEEDS)


def _kind(declarations: Declarations, ref: Ref) -> str:
    if ref.space == OUTPUTS:
        return "output"
    return "label" if ref.name in declarations.labels else "input"  # a loss may take an input as a label
