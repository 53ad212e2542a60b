"""Check that a method of balancing has something to weigh, if loaders take turns."""

from __future__ import annotations

from typing import Iterator, Mapping

from ...sampling import TaskLoaders
from ...spec.task_slots import TaskSlots, with_optional
from ..engine import Engine


def lone_task_messages(engine: Engine, slots: Mapping[str, TaskSlots], data: TaskLoaders) -> Iterator[str]:
    """Yield why a method that weighs the tasks of a batch against each other does nothing, if that is so.

    `slots` are the slots of each loader's batches. Labels that are missing may leave one task in a batch, but
    not in all of them.
    """
    balancer = engine.balancer
    if balancer is None or data.joins or not getattr(balancer.method, "needs_others", False):
        return
    terms = [
        term for term in with_optional(engine.spec, engine.spec.slot_names).terms if term.spec.weight != 0
    ]
    for own in slots.values():
        losses = [term.key for term in terms if term.optional <= set(own.values())]
        if len({balancer.tasks.of_loss[loss] for loss in losses}) > 1:
            return
    yield (
        f"balance: {type(balancer.method).__name__} weighs the tasks of a batch against each other, but with "
        f"{type(data.sampling).__name__} each batch comes from one loader, and none has labels of two tasks; "
        "give sampling=Together(), or another method of losses, such as DWA"
    )
