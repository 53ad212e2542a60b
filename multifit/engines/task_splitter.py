"""Split the batches of several loaders, each with its own task's slots: one at a time, or joined into one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..checks import describe
from ..errors import Problem, quoted, raise_problems
from ..sampling import TaskBatch
from ..spec import TaskSpec
from ..spec.terms import TaskSlots

Parts = Mapping[str, Mapping[str, Any]]
"""Each loader's slots by name."""


class TaskSplitter(ABC):
    """Splits the batches of several loaders: one loader's at a time, or one of each, joined into one batch.

    ``make(slots)`` returns a splitter for the batches of a loader with these slots, and ``make(None)`` one
    for joined batches.
    """

    def __init__(
        self, spec: TaskSpec, slots: Mapping[str, TaskSlots], make: Callable[[TaskSlots | None], Any]
    ) -> None:
        self._spec = spec
        self._splitters = {task: make(task_slots) for task, task_slots in slots.items()}
        self._whole = make(None)

    @abstractmethod
    def join(self, parts: Parts) -> tuple[dict[str, Any], list[Problem]]:
        """Return the slots of the batch that the loaders' batches make together, and the problems found."""

    def split(self, raw: TaskBatch) -> Any:
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
        joined, problems = self.join({task: parts[0] for task, parts in named.items()})
        if problems:
            return [], problems
        arrays, problems = self._whole.bind(joined)
        return [arrays], problems

    def distribute(self, raw: TaskBatch, parts: Sequence[Mapping[str, Any]]) -> Any:
        """Place named arrays on the devices."""
        splitter = self._splitters[raw.name] if len(raw.batches) == 1 else self._whole
        return splitter.distribute(raw, parts)


def joined_slots(
    spec: TaskSpec,
    parts: Parts,
    missing: Any,
    dtype_of: Callable[[Sequence[Any]], Any],
    concatenate: Callable[[Sequence[Any], Any], Any],
) -> tuple[dict[str, Any], list[Problem]]:
    """Join the batches of several loaders into one; return its slots, and the problems found.

    If every loader has all inputs, the samples are concatenated in the order of the loaders, and labels that
    a loader lacks are missing for its samples. Otherwise no two loaders have the same slot, and the slots are
    put together. `missing` are an engine's missing labels, ``dtype_of(arrays)`` returns the common dtype of
    its arrays, and ``concatenate(arrays, dtype)`` joins them.
    """
    if not all(set(spec.inputs) <= part.keys() for part in parts.values()):
        return {name: array for part in parts.values() for name, array in part.items()}, []
    slots: dict[str, Any] = {}
    problems: list[Problem] = []
    sizes = {
        task: next((len(array) for array in part.values() if array is not None), 0)
        for task, part in parts.items()
    }
    for name in dict.fromkeys(name for part in parts.values() for name in part):
        arrays = {task: part[name] for task, part in parts.items() if part.get(name) is not None}
        like = next(iter(arrays.values()), None)
        dtype = dtype_of(list(arrays.values())) if arrays else None
        if like is None:
            slots[name] = None
        elif len({array.shape[1:] for array in arrays.values()}) > 1:
            problems.append(_shapes_differ(name, arrays))
        elif len(arrays) < len(parts) and (why := missing.problem_of(name, dtype)):
            problems.append(Problem("data", f"{why}: samples of other loaders lack it"))
        else:
            rows = [
                arrays[task] if task in arrays else missing.rows(name, size, like.shape, dtype)
                for task, size in sizes.items()
            ]
            slots[name] = concatenate(rows, dtype)
    return slots, problems


def _shapes_differ(name: str, arrays: Mapping[str, Any]) -> Problem:
    found = ", ".join(f"{describe.array(array)} of {quoted([task])}" for task, array in arrays.items())
    way_out = "give samples of one shape, or let the loaders take turns, as with Proportional()"
    return Problem("data", f'the slot "{name}" cannot be joined in one batch: {found}; {way_out}')
