"""Turn what a loader yields into named arrays on every device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from ...engines.added_slots import KnownLabels
from ...engines.batch import WHOLE
from ...engines.splitter import MAX_SIGNATURES, Splitter
from ...utils.errors import Problem, raise_problems
from ...utils.protocols import Context, Shape
from ...utils.text import counted
from ..compat import mx
from ..user_code import user_code
from .added_slots import MissingLabels, dtype_name
from .arrays import (
    RawArray,
    Signature,
    as_array,
    cast_dtype,
    common_dtype,
    concatenated,
    moved,
    samples,
    signature_of,
    sought_in,
)
from .batch import Batch

SlotSignature = dict[str, tuple[Shape, str] | None]
"""The shape and the dtype of each slot of a batch, after casting; None for a label that is missing."""

DENSE = frozenset({mx.nd.NDArray, np.ndarray})

NamedArrays = Mapping[str, RawArray | None]


class Steady(NamedTuple):
    """How batches of dense arrays that are like an earlier one are placed.

    `positions` hold the slot of each array, its position, and the dtype in which it is placed, None for an
    NDArray that is not cast. `samples` is the batch's size, and `signature` that of the placed slots. `known`
    are the shapes and dtypes of labels that may be missing.
    """

    positions: list[tuple[str, int, Any]]
    samples: int
    signature: Signature | None
    known: KnownLabels


class BatchSplitter(Splitter):
    """Names, checks, casts and places the arrays of raw batches."""

    user_code, missing_labels = staticmethod(user_code), MissingLabels
    as_array, samples = staticmethod(as_array), staticmethod(samples)
    concatenate, common_dtype = staticmethod(concatenated), staticmethod(common_dtype)
    known_as = staticmethod(dtype_name)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._steady: dict[Any, Steady] = {}  # by names, shapes and dtypes
        self._is_simple = len(self.devices) == 1 and self.spec.batch_fn is None

    def split(self, raw: Any) -> Batch:
        """Return the batch, named, cast and placed; `raw` is None if this process has no samples of it.

        On one device, dense arrays are not named and checked again if an earlier batch had the same names,
        shapes and dtypes. Raises DataError if slots or dtypes are not as declared.
        """
        share, axis = self.seen.current.share, self.batch_axis
        if raw is None and share is not WHOLE:
            return Batch(raw, 0, axis, share.total(0), self.absent)
        key: Any = None
        arrays = raw
        if self._is_simple and share is WHOLE and type(raw) in (tuple, list, dict):
            names = None
            if type(raw) is dict:
                names, arrays = tuple(raw), list(raw.values())
            key = (
                names,
                len(self.seen.casts),
                *[(a.shape, a.dtype) if type(a) in DENSE else None for a in arrays],
            )
            if (steady := self._steady.get(key)) is not None:
                positions, count, signature, known = steady
                self.seen.known.update(known)
                [context] = self.devices
                slots = {
                    name: moved(arrays[i], context, dtype) if dtype else arrays[i].as_in_context(context)
                    for name, i, dtype in positions
                }
                batch = Batch(raw, count, axis, count, self.absent, [context], [slots], [count], signature)
                for change in self.changes:
                    change(batch)
                return batch
        parts, problems = self.name_arrays(raw)
        raise_problems(problems)
        batch = self.distribute(raw, parts)
        if key is not None and None not in key[2:] and len(self._steady) < MAX_SIGNATURES:
            self._remember_batch(key, arrays, parts[0], batch)
        return batch

    def name_parts(self, parts: Sequence[Any]) -> tuple[list[dict[str, Any]], list[Problem]]:
        """Return the arrays of a batch that is split already, for each device, and the problems found."""
        given, most = len(parts), self.seen.current.share.ranks * len(self.devices)
        if not 0 < given <= most:
            message = f"the batch is split into {counted(given, 'part')} for {counted(most, 'device')}"
            return [], [Problem("data", f"{message}; give one part for each, or fewer")]
        return super().name_parts(parts)

    def distribute(self, raw: Any, parts: Sequence[NamedArrays]) -> Batch:
        """Place named arrays on the devices: a single part is split over all, several go to one device each.

        Devices without samples are left out.
        """
        axis, share = self.batch_axis, self.seen.current.share
        counts = [next(a.shape[axis] for a in arrays.values() if a is not None) for arrays in parts]
        batch = Batch(raw, 0, axis, share.total(sum(counts)), self.absent)
        pieces: list[tuple[NamedArrays, int, slice | None]]
        if len(parts) == 1:
            [arrays], [count] = parts, counts
            start, sizes = share.cut(count, len(self.devices))
            ends = accumulate(sizes, initial=start)
            pieces = [
                (arrays, n, slice(first, first + n) if n < count else None) for n, first in zip(sizes, ends)
            ]
        else:  # split already, perhaps for several processes
            first = share.rank * len(self.devices)
            pieces = [(arrays, n, None) for arrays, n in zip(parts[first:], counts[first:])]
        for context, (arrays, size, rows) in zip(self.devices, pieces):
            if size:
                batch.samples += size
                batch.contexts.append(context)
                batch.sizes.append(size)
                batch.slots.append({name: self._place(name, a, rows, context) for name, a in arrays.items()})
        for change in self.changes:
            change(batch)
        return batch

    def target(self, name: str, dtype: Any) -> str | None:
        if name in self.dtypes:
            return self.dtypes[name]
        cast = self.seen.casts.get(name) or cast_dtype(dtype, self.real)
        was_real = np.dtype(cast or dtype) != self.real and self.was_real(name)
        return self.real if was_real else cast

    def _remember_batch(
        self, key: tuple[Any, ...], arrays: Sequence[Any], named: NamedArrays, batch: Batch
    ) -> None:
        positions = []
        for name, i in self.positions(arrays, named):
            dtype = self._dtype(name, arrays[i])
            if dtype is None and isinstance(arrays[i], np.ndarray):
                dtype = arrays[i].dtype
            positions.append((name, i, dtype))
        if positions:
            signature = None if self.changes else signature_of(batch.slots[0].values())
            known = {name: self.seen.known[name] for name in named if name in self.seen.known}
            self._steady[key] = Steady(positions, batch.samples, signature, known)

    def _dtype(self, name: str, array: RawArray) -> Any:
        """Return the dtype in which an array is placed; None if it is not cast."""
        dtype: Any = self.target(name, array.dtype)
        # cast only after its missing values are found
        return sought_in(array.dtype, dtype) if name in self.missing.labels else dtype

    def _place(self, name: str, array: RawArray | None, rows: slice | None, context: Context) -> Any:
        if array is None:
            return None
        if rows is not None:
            array = samples(array, rows, self.batch_axis)
        if isinstance(array, mx.nd.sparse.BaseSparseNDArray) and name not in self.spec.inputs:
            array = array.tostype("default")  # losses and metrics read sizes, which sparse arrays lack
        return moved(array, context, self._dtype(name, array))
