"""From whatever a loader yields to named arrays on every device."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Mapping, Sequence

import numpy as np

from ...checks import bind_slots, slot_problems
from ...errors import Problem, raise_problems
from ...spec import TaskSpec
from ...spec.names import leaves
from ..compat import mx
from ..user_code import user_code
from .arrays import as_array, cast_of, place
from .devices import shares

__all__ = ["Batch", "BatchSplitter"]


MAX_SEEN = 50  # forms of batches that are kept in mind


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
    shapes : tuple, optional
        Of the one device's slots, where they are known already.
    """

    raw: Any
    samples: int
    contexts: list[Any] = field(default_factory=list)
    slots: list[dict[str, Any]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    shapes: tuple[Any, ...] | None = None


class BatchSplitter:
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
    batch_axis : int
        The axis of the samples in all slots.
    change : callable, optional
        ``change(slots) -> slots``: what handlers make of each device's slots.
    """

    def __init__(
        self,
        spec: TaskSpec,
        contexts: list[Any],
        notice: Callable[[str], None],
        labels: bool = True,
        batch_axis: int = 0,
        change: Callable[..., dict[str, Any]] | None = None,
    ) -> None:
        self.spec, self.contexts, self.notice = spec, contexts, notice
        self.labels, self.batch_axis, self._change = labels, batch_axis, change
        self._dtypes = {name: label.dtype for name, label in spec.label_specs.items() if label.dtype}
        self.seen: list[dict[str, Any]] = []  # forms of batches: (shape, dtype as placed) or None by slot
        self._sound: set[Any] = set()  # forms of batches that were looked at: most batches are like the first
        # and which of their arrays are which slots, with these slots' shapes
        self._familiar: dict[Any, tuple[list[tuple[int, str]], tuple[Any, ...]]] = {}

    def inspect(self, raw: Any) -> tuple[dict[str, Any], list[Problem]]:
        """Name the arrays of a raw batch; return them, on no device yet, and what is wrong with them."""
        found = raw
        if self.spec.batch_fn is not None:
            with user_code(lambda: "batch_fn", ("batch", raw)):
                found = self.spec.batch_fn(raw)
        named, problems = bind_slots(self.spec.batch or (), self.spec.inputs, self._flat(found), self.labels)
        wanted = {name: array for name, array in named.items() if name in self.spec.slot_names}
        form = tuple((getattr(a, "shape", None), getattr(a, "dtype", None)) for a in wanted.values())
        if not problems and form not in self._sound:
            problems = slot_problems(wanted, self.batch_axis) or self._no_samples(wanted)
            if not problems:
                self._tell_casts(wanted)
                self._sound.add(form)
                self._see(wanted)
        return wanted, problems

    def split(self, raw: Any) -> Batch:
        """Return the batch, named, cast and placed.

        Raises
        ------
        DataError
            Its slots or dtypes are not as declared.
        """
        form = self._plain(raw)
        if form in self._familiar:
            (context,), (order, shapes) = self.contexts, self._familiar[form]
            slots = {name: raw[i].as_in_context(context) for i, name in order}
            samples = shapes[0][self.batch_axis]
            return self._changed(Batch(raw, samples, [context], [slots], [samples], shapes))
        arrays, problems = self.inspect(raw)
        raise_problems(problems)
        if form is not None:
            self._remember(form, raw, arrays)
        return self.place(raw, arrays)

    def place(self, raw: Any, arrays: Mapping[str, Any]) -> Batch:
        """Split named arrays over the devices; devices without samples are left out."""
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
        return self._changed(batch)

    def _changed(self, batch: Batch) -> Batch:
        if self._change is not None:
            batch.slots, batch.shapes = [self._change(slots) for slots in batch.slots], None
        return batch

    def _plain(self, raw: Any) -> Any:
        """Return the form of a batch that is a row of NDArrays for the one device; None for any other."""
        plain = len(self.contexts) == 1 and self.spec.batch_fn is None and type(raw) in (list, tuple)
        if not plain or not raw or any(type(array) is not mx.nd.NDArray for array in raw):
            return None
        return tuple([(array.shape, array.dtype) for array in raw])

    def _remember(self, form: Any, raw: Any, arrays: Mapping[str, Any]) -> None:
        at = {id(array): i for i, array in enumerate(raw)}
        casts = any(cast_of(array) for array in arrays.values()) or set(self._dtypes) & set(arrays)
        if len(at) == len(raw) and not casts and len(self._familiar) < MAX_SEEN:
            order = [(at[id(array)], name) for name, array in arrays.items()]
            self._familiar[form] = order, tuple(form[i][0] for i, _ in order)

    def _see(self, arrays: Mapping[str, Any]) -> None:
        form = {name: self._form(name, array) for name, array in arrays.items()}
        if form in self.seen:
            self.seen.remove(form)
        self.seen.append(form)  # the latest is the last
        del self.seen[:-MAX_SEEN]

    def _form(self, name: str, array: Any) -> Any:
        if array is None:
            return None
        dtype = self._dtypes.get(name) or cast_of(array) or array.dtype
        return tuple(array.shape), np.dtype(dtype).name

    def _flat(self, found: Any) -> Any:
        if isinstance(found, Mapping):
            return {key: as_array(value) for key, value in found.items()}
        parts = found if isinstance(found, (list, tuple)) else [found]
        if parts and all(map(_is_data_batch, parts)):
            # DALI's iterators yield a list with a DataBatch for each of their devices
            return [_joined(arrays, self.batch_axis) for arrays in zip(*map(self._unpadded, parts))]
        return [as_array(leaf) for _, leaf in leaves(found)]

    def _unpadded(self, batch: Any) -> list[Any]:
        """Return a DataBatch's arrays without the rows that only fill it up."""
        arrays = [*batch.data, *(getattr(batch, "label", None) or [])]
        pad = getattr(batch, "pad", 0) or 0
        if not pad:
            return arrays
        axis = self.batch_axis
        whole = (slice(None),) * axis
        return [array[whole + (slice(0, array.shape[axis] - pad),)] for array in arrays]

    def _no_samples(self, arrays: Mapping[str, Any]) -> list[Problem]:
        shapes = {name: array.shape for name, array in arrays.items() if array is not None}
        if any(shape[self.batch_axis] for shape in shapes.values()):
            return []
        found = ", ".join(f"{name} {shape}" for name, shape in shapes.items()) or "None in every slot"
        return [Problem("data", f"the batch holds no sample: {found}; leave empty batches out")]

    def _share(self, name: str, array: Any, start: int, size: int, samples: int, context: Any) -> Any:
        if array is not None and size < samples:
            array = array[(slice(None),) * self.batch_axis + (slice(start, start + size),)]
        return place(array, context, self._dtypes.get(name))

    def _tell_casts(self, arrays: Mapping[str, Any]) -> None:
        for name, array in arrays.items():
            wanted = None if array is None or name in self._dtypes else cast_of(array)
            if wanted is not None:
                found = np.dtype(array.dtype).name
                self.notice(f'the slot "{name}" is {found} and is cast to {wanted}, batch by batch')


def _is_data_batch(value: Any) -> bool:
    if isinstance(value, (mx.nd.NDArray, np.ndarray)):
        return False  # some arrays raise when they are asked for their `data`
    return isinstance(value, mx.io.DataBatch) or isinstance(getattr(value, "data", None), list)


def _joined(arrays: Sequence[Any], axis: int) -> Any:
    if len(arrays) == 1:
        return as_array(arrays[0])
    return mx.nd.concat(*[array.as_in_context(arrays[0].context) for array in arrays], dim=axis)
