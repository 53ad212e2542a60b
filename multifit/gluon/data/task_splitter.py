"""Turn the batches of several loaders, each with its own task's slots, into named arrays on every device."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...checks import describe
from ...errors import Problem, quoted, raise_problems
from ...sampling import TaskBatch
from ...spec import TaskSpec
from ...spec.terms import TaskSlots
from ..compat import mx
from .arrays import mxnet_dtype, place
from .batch import Batch
from .missing import MissingLabels
from .splitter import BatchSplitter


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


def joined_batch(
    spec: TaskSpec, parts: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, Any], list[Problem]]:
    """Join the batches of several loaders into one; return its slots, and the problems found.

    `parts` holds each loader's slots by name. If every loader has all inputs, the samples are concatenated in
    the order of the loaders, and labels that a loader lacks are missing for its samples. Otherwise no two
    loaders have the same slot, and the slots are put together.
    """
    if not all(set(spec.inputs) <= part.keys() for part in parts.values()):
        return {name: array for part in parts.values() for name, array in part.items()}, []
    slots: dict[str, Any] = {}
    problems: list[Problem] = []
    missing = MissingLabels(spec.label_specs)
    sizes = {task: _samples(part) for task, part in parts.items()}
    for name in dict.fromkeys(name for part in parts.values() for name in part):
        arrays = {task: part[name] for task, part in parts.items() if part.get(name) is not None}
        like = next(iter(arrays.values()), None)
        dtype = np.result_type(*[array.dtype for array in arrays.values()]) if arrays else None
        if like is None:
            slots[name] = None
        elif len({array.shape[1:] for array in arrays.values()}) > 1:
            problems.append(_shapes_differ(name, arrays))
        elif len(arrays) < len(parts) and (why := missing.problem_of(name, dtype)):
            problems.append(Problem("data", f"{why}: samples of other loaders lack it"))
        else:
            slots[name] = _concatenated(
                [
                    arrays[task] if task in arrays else missing.rows(name, size, like.shape, dtype)
                    for task, size in sizes.items()
                ],
                dtype,
            )
    return slots, problems


def _samples(part: Mapping[str, Any]) -> int:
    return next((len(array) for array in part.values() if array is not None), 0)


def _shapes_differ(name: str, arrays: Mapping[str, Any]) -> Problem:
    found = ", ".join(f"{describe.array(array)} of {quoted([task])}" for task, array in arrays.items())
    way_out = "give samples of one shape, or let the loaders take turns, as with Proportional()"
    return Problem("data", f'the slot "{name}" cannot be joined in one batch: {found}; {way_out}')


def _concatenated(arrays: Sequence[Any], dtype: Any) -> Any:
    """Concatenate NumPy arrays or NDArrays; `dtype` is their common dtype according to NumPy."""
    first = next((array for array in arrays if isinstance(array, mx.nd.NDArray)), None)
    if first is None:
        return np.concatenate(arrays)
    return mx.nd.concat(*(place(array, first.context, mxnet_dtype(dtype)) for array in arrays), dim=0)
