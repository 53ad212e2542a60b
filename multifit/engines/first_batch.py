"""Batches that are read ahead of a pass, to be checked."""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple, Sequence

from ..spec.plan import LoaderPlan
from ..spec.task_slots import TaskSlots


class Peeked(NamedTuple):
    """A batch that was read ahead, and this process's share of it; it serves as a loader of one batch."""

    raw: Any
    share: Any


class FirstBatches(NamedTuple):
    """The first batches of several loaders, or the one that they make together.

    `slots` are those of each loader's batches. `plans` say what training takes from each loader.
    """

    batches: Sequence[Peeked]
    slots: Mapping[str, TaskSlots]
    plans: Sequence[LoaderPlan] = ()
