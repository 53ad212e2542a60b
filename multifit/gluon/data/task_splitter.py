"""Turn the batches of several loaders, each with its own task's slots, into named arrays on every device."""

from __future__ import annotations

from typing import Any, Callable, Mapping, Sequence

from ...errors import Problem, raise_problems
from ...sampling import TaskBatch
from ...spec import TaskSpec
from ...spec.task_slots import TaskSlots
from .batch_splitter import BatchSplitter
from .batches import Batch
from .joined_batches import joined_batch


class TaskSplitter:
    """Splits the batches of several loaders: one loader's at a time, or one of each, joined into one batch.

    ``make(slots)`` returns a splitter for the batches of a loader with these slots, and ``make(None)`` one
    for joined batches.
    """

    def __init__(
        self,
        spec: TaskSpec,
        slots: Mapping[str, TaskSlots],
        make: Callable[[TaskSlots | None], BatchSplitter],
    ) -> None:
        self._spec = spec
        self._splitters = {task: make(task_slots) for task, task_slots in slots.items()}
        self._whole = make(None)

    def split(self, raw: TaskBatch) -> Batch:
        """Return the batch, named, cast and placed; raises DataError if slots or dtypes are wrong."""
        if len(raw.batches) == 1:
            [(task, batch)] = raw.batches.items()
            return self._splitters[task].split(batch)
        parts, problems = self.name_arrays(raw)
        raise_problems(problems)
        return self.distribute(raw, parts)

    def name_arrays(self, raw: TaskBatch) -> tuple[list[dict[str, Any]], list[Problem]]:
        """Return the arrays of a raw batch by slot, not placed yet, and the problems found."""
        named: dict[str, list[dict[str, Any]]] = {}
        problems: list[Problem] = []
        for task, batch in raw.batches.items():
            named[task], wrong = self._splitters[task].name_arrays(batch)
            problems += wrong
        if len(raw.batches) == 1 or problems:
            return next(iter(named.values())), problems
        joined, problems = joined_batch(self._spec, {task: parts[0] for task, parts in named.items()})
        if problems:
            return [], problems
        arrays, problems = self._whole.bind(joined)
        return [arrays], problems

    def distribute(self, raw: TaskBatch, parts: Sequence[Mapping[str, Any]]) -> Batch:
        """Place named arrays on the devices."""
        splitter = self._splitters[raw.name] if len(raw.batches) == 1 else self._whole
        return splitter.distribute(raw, parts)
