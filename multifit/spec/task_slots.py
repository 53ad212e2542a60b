"""With a loader for each task: which slots the batches of a loader have, and what they are used for."""

from __future__ import annotations

from dataclasses import replace
from typing import Collection, Mapping

from .declarations import Declared, changed
from .missing import NAN
from .terms import Taker

TaskSlots = Mapping[str, str]
"""The slots of a loader's batches, in their order, by the names that they have in the batches."""


def task_slots(spec: Declared) -> dict[str, TaskSlots]:
    """Return the slots that a batch of each task has, if it is a list.

    The tasks are the parts of a combined spec. Those of any other are its losses, and if it has none its
    metrics: a batch has all inputs, and the labels that the loss takes.
    """
    if spec.parts:
        return dict(spec.parts)
    takers: tuple[Taker, ...] = spec.terms or spec.metric_terms
    return {
        taker.key: {name: name for name in spec.batch if name in spec.inputs or name in _slots(spec, taker)}
        for taker in takers
    }


def with_optional(spec: Declared, lacking: Collection[str]) -> Declared:
    """Return a spec whose losses and metrics know which of the slots that they take some batches lack."""
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
    """Return the names of all slots that a loss or a metric takes, those that mask or normalise included."""
    taken = {ref.name for ref in taker.labels}
    by = getattr(taker.spec, "normalize_by", None)
    taken |= {by} if isinstance(by, str) else set()
    masks = {label.missing for name, label in spec.label_specs.items() if name in taken}
    return frozenset(taken | {mask for mask in masks if isinstance(mask, str) and mask != NAN})
