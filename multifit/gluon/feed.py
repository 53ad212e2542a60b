"""From whatever a loader yields to named arrays on every device."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Callable, Iterator, Mapping

import numpy as np

from ..checks import bind_slots, loader_problems, slot_problems
from ..errors import DataError, Problem, raise_problems
from ..spec import TaskSpec
from ..spec.names import leaves
from .arrays import as_array, place
from .compat import mx
from .devices import shares

__all__ = ["Batch", "Feed", "length", "peeked", "rewound"]


@dataclass
class Batch:
    """A batch, split over the devices.

    Attributes
    ----------
    raw : object
        What the loader yielded.
    samples : int
        Number of samples.
    contexts, slots, sizes : list
        Per device that got samples: the context, its arrays by slot, its number of samples.
    """

    raw: Any
    samples: int
    contexts: list[Any] = field(default_factory=list)
    slots: list[dict[str, Any]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)


class Feed:
    """Turns raw batches into :class:`Batch` for one TaskSpec.

    Parameters
    ----------
    spec : TaskSpec
        Names the slots.
    contexts : list of Context
        The devices.
    notice : callable
        Told, once each, what was done to the data (float64 that was cast).
    labels : bool
        False: labels may be missing (predicting).
    """

    def __init__(
        self,
        spec: TaskSpec,
        contexts: list[Any],
        notice: Callable[[str], None],
        labels: bool = True,
        batch_axis: int = 0,
    ) -> None:
        self.spec, self.contexts, self.notice, self.labels, self.batch_axis = (
            spec,
            contexts,
            notice,
            labels,
            batch_axis,
        )
        self._dtypes = {name: label.dtype for name, label in spec.label_specs.items() if label.dtype}

    def inspect(self, raw: Any) -> tuple[dict[str, Any], list[Problem]]:
        """Name the arrays of a raw batch; return them, on no device yet, and what is wrong with them."""
        found = self.spec.batch_fn(raw) if self.spec.batch_fn else raw
        pad = raw.pad or 0 if isinstance(raw, mx.io.DataBatch) and not self.spec.batch_fn else 0
        named, problems = bind_slots(self.spec.batch, self.spec.inputs, _flat(found), self.labels)
        wanted = {name: array for name, array in named.items() if name in self.spec.slot_names}
        problems = problems or slot_problems(wanted, self.batch_axis)
        if pad and not problems:
            wanted = {name: _without_last(array, pad, self.batch_axis) for name, array in wanted.items()}
        return wanted, problems

    def split(self, raw: Any) -> Batch:
        """Return the batch, named, cast and placed.

        Raises
        ------
        DataError
            Its slots or dtypes are not as declared.
        """
        arrays, problems = self.inspect(raw)
        raise_problems(problems)
        return self.place(raw, arrays)

    def place(self, raw: Any, arrays: Mapping[str, Any]) -> Batch:
        """Split named arrays over the devices; devices without samples are left out."""
        self._tell_casts(arrays)
        samples = next(array.shape[self.batch_axis] for array in arrays.values() if array is not None)
        batch, start = Batch(raw, samples), 0
        for context, size in zip(self.contexts, shares(samples, len(self.contexts))):
            if size:
                batch.contexts.append(context)
                batch.sizes.append(size)
                batch.slots.append(
                    {n: self._share(n, a, start, size, samples, context) for n, a in arrays.items()}
                )
            start += size
        return batch

    def _share(self, name: str, array: Any, start: int, size: int, samples: int, context: Any) -> Any:
        if array is not None and size < samples:
            array = array[(slice(None),) * self.batch_axis + (slice(start, start + size),)]
        return place(array, context, self._dtypes.get(name))

    def _tell_casts(self, arrays: Mapping[str, Any]) -> None:
        for name, array in arrays.items():
            if array is not None and array.dtype == np.float64 and name not in self._dtypes:
                self.notice(f'the slot "{name}" is float64 and is cast to float32, batch by batch')


def rewound(data: Any) -> Iterator[Any]:
    """Iterate over a loader from its start: a DataIter is reset first."""
    if callable(getattr(data, "reset", None)):
        data.reset()
    return iter(data)


def length(data: Any) -> int | None:
    """Return the number of batches, where the loader knows it."""
    return len(data) if hasattr(data, "__len__") else None


def peeked(data: Any, what: str) -> tuple[Any, Iterator[Any]]:
    """Return a loader's first batch and an iterator over all of it, the first included.

    Raises
    ------
    DataError
        The loader is empty, or is none.
    """
    raise_problems(loader_problems(what, data, once=True))
    iterator = rewound(data)
    try:
        first = next(iterator)
    except StopIteration:
        raise DataError(
            f'{what} is empty: it yields no batch; give it at least one (mind last_batch="discard")'
        ) from None
    return first, chain([first], iterator)


def _flat(found: Any) -> Any:
    if isinstance(found, Mapping):
        return {key: as_array(value) for key, value in found.items()}
    if isinstance(found, mx.io.DataBatch) or (
        hasattr(found, "data") and isinstance(found.data, list)
    ):
        found = [*found.data, *(found.label or [])]
    return [as_array(leaf) for _, leaf in leaves(found)]


def _without_last(array: Any, count: int, axis: int) -> Any:
    if array is None:
        return None
    return array[(slice(None),) * axis + (slice(0, array.shape[axis] - count),)]
