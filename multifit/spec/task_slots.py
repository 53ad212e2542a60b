"""A loader for each task: which slots the batches of each loader have, and what takes them."""

from __future__ import annotations

from dataclasses import replace
from typing import Collection, Mapping

from .declarations import Declared, changed
from .missing import NAN
from .terms import Taker

TaskSlots = Mapping[str, str]
"""The names of a loader's slots in the spec, by their names in the loader's batches, in order."""


def task_slots(spec: Declared) -> dict[str, TaskSlots]:
    """Return, for each task, the slots of its batches, in their order if a batch is a list.

    The tasks of a combined spec are its parts. The tasks of any other spec are its losses, or its metrics if
    it has no losses; a task's batches then have all inputs, and the labels that its loss or metric takes.
    """
    if spec.parts:
        return dict(spec.parts)
    takers: tuple[Taker, ...] = spec.terms or spec.metric_terms
    return {
        taker.key: {name: name for name in spec.batch if name in spec.inputs or name in _slots(spec, taker)}
        for taker in takers
    }


def with_optional(spec: Declared, lacking: Collection[str]) -> Declared:
    """Return a spec in which `optional` of each loss and metric holds the slots that some batches lack."""
    if not lacking:
        return spec
    terms = [replace(term, optional=_slots(spec, term).intersection(lacking)) for term in spec.terms]
    of_losses = {figure: term.optional for term in terms for figure in term.figures}
    metrics = [
        replace(
            metric,
            optional=_slots(spec, metric)
            .intersection(lacking)
            .union(*(of_losses[figure] for figure in metric.losses)),
        )
        for metric in spec.metric_terms
    ]
    return changed(spec, terms=tuple(terms), metric_terms=tuple(metrics))


def _slots(spec: Declared, taker: Taker) -> frozenset[str]:
    """Return the names of all slots that a loss or metric takes, including masks and normalizers."""
    taken = {ref.name for ref in taker.labels}
    by = getattr(taker.spec, "normalize_by", None)
    taken |= {by} if isinstance(by, str) else set()
    masks = {label.missing for name, label in spec.label_specs.items() if name in taken}
    return frozenset(taken | {mask for mask in masks if isinstance(mask, str) and mask != NAN})
