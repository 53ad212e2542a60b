"""Turn what a loader yields into named arrays on every device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from ...engines.added_slots import KnownLabels
from ...engines.raw_batches import arrays_in
from ...engines.shares import WHOLE
from ...engines.splitter import MAX_SIGNATURES, Splitter
from ...errors import Problem, counted, raise_problems
from ...protocols import Context, Shape, Slots
from ...spec import TaskSpec
from ..compat import mx
from ..user_code import user_code
from .arrays import RawArray, Signature, as_array, cast_dtype, concatenated, place, samples
from .batch import Batch, BatchLayout, layout_of, signature_of_list
from .missing import MissingLabels, sought_in
from .value_weights import ValueWeights

SlotSignature = dict[str, tuple[Shape, str] | None]
"""The shape and the dtype of each slot of a batch, after casting; None for a label that is missing."""

NamedArrays = Mapping[str, RawArray | None]


class BatchSplitter(Splitter):
    """Names, checks, casts and places the arrays of raw batches, for one TaskSpec.

    `change(slots) -> slots` lets handlers change each device's slots. `fill_in` adds slots that no batch
    holds. `known` are the shapes and dtypes of labels that may be missing, as all batches of the stage have
    shown them. `weights` adds the slots with the weights of losses' values. The `options` are those of
    :class:`Splitter`.
    """

    user_code = staticmethod(user_code)

    def __init__(
        self,
        spec: TaskSpec,
        contexts: list[Context],
        log_once: Callable[[str], None],
        change: Callable[[Slots], Slots] | None = None,
        real: str = "float32",
        fill_in: Callable[[Batch], None] | None = None,
        known: KnownLabels | None = None,
        weights: ValueWeights | None = None,
        **options: Any,
    ) -> None:
        declared = {name: label.dtype for name, label in spec.label_specs.items() if label.dtype}
        missing = MissingLabels(spec.label_specs, known)
        super().__init__(spec, log_once, declared, missing, real, **options)
        self.contexts, self._change = contexts, change
        self._fill_in, self._weights = fill_in, weights
        self._layouts: dict[Signature, BatchLayout] = {}  # of batches that need neither cast nor splitting
        self._may_skip = len(contexts) == 1 and spec.batch_fn is None

    def split(self, raw: Any) -> Batch:
        """Return the batch, named, cast and placed; `raw` is None if this process has no samples of it.

        On one device, a list of NDArrays is not checked again if an earlier one had the same shapes and
        dtypes and needed no cast: the stored layout says which array is which slot. Raises DataError if slots
        or dtypes are not as declared.
        """
        if raw is None and self._current.share is not WHOLE:
            total = self._current.share.total(0)
            return Batch(raw, 0, axis=self.batch_axis, total=total, absent=self._absent)
        signature = signature_of_list(raw) if self._may_skip and self._current.share.cuts_nothing else None
        layout = None if signature is None or self._casts else self._layouts.get(signature)
        if layout is not None:
            context, samples = self.contexts[0], layout.samples
            slots = layout.slots(raw, context)
            total = self._current.share.total(samples)
            batch = Batch(
                raw, samples, [context], [slots], [samples], layout.signature, self.batch_axis, total
            )
            return self._apply_change(batch)
        parts, problems = self.name_arrays(raw)
        raise_problems(problems)
        if signature is not None:
            self._remember_layout(signature, raw, parts[0])
        return self.distribute(raw, parts)

    def arrays_in(self, unnamed: Any) -> dict[str, Any] | list[Any]:
        """Return the arrays of a raw batch, by name or in order."""
        return arrays_in(unnamed, self.batch_axis, as_array, samples, concatenated)

    def name_parts(self, parts: Sequence[Any]) -> tuple[list[dict[str, Any]], list[Problem]]:
        """Return the arrays of a batch that is split already, for each device, and the problems found."""
        found, most = len(parts), self._current.share.ranks * len(self.contexts)
        if not 0 < found <= most:
            message = f"the batch is split into {counted(found, 'part')} for {counted(most, 'device')}"
            return [], [Problem("data", f"{message}; give one part for each, or fewer")]
        return super().name_parts(parts)

    def distribute(self, raw: Any, parts: Sequence[NamedArrays]) -> Batch:
        """Place named arrays on the devices: a single part is split over all, several go to one device each.

        Devices without samples are left out.
        """
        axis = self.batch_axis
        counts = [next(a.shape[axis] for a in arrays.values() if a is not None) for arrays in parts]
        if len(parts) == 1:
            pieces = self._pieces(parts[0], counts[0])
        else:  # split already, perhaps for several processes
            first = self._current.share.rank * len(self.contexts)
            pieces = [(arrays, n, None) for arrays, n in zip(parts[first:], counts[first:])]
        batch = Batch(raw, 0, axis=self.batch_axis, total=self._current.share.total(sum(counts)))
        for context, (arrays, size, rows) in zip(self.contexts, pieces):
            if size:
                batch.samples += size
                batch.contexts.append(context)
                batch.sizes.append(size)
                batch.slots.append({n: self._place(n, a, rows, context) for n, a in arrays.items()})
        return self._apply_change(batch)

    def _pieces(self, arrays: NamedArrays, count: int) -> list[tuple[NamedArrays, int, slice | None]]:
        """Return for each device the arrays, the number of samples that it gets, and their rows."""
        first, sizes = self._current.share.cut(count, len(self.contexts))
        ends = accumulate(sizes, initial=first)
        return [(arrays, n, slice(start, start + n) if n < count else None) for n, start in zip(sizes, ends)]

    def _remember_layout(self, signature: Signature, raw: Any, arrays: Mapping[str, Any]) -> None:
        casts = any(self._cast(name, array) for name, array in arrays.items())
        layout = None if casts else layout_of(raw, arrays, self.batch_axis)
        if layout is not None and len(self._layouts) < MAX_SIGNATURES:
            self._layouts[signature] = layout

    def _place(self, name: str, array: RawArray | None, rows: slice | None, context: Context) -> Any:
        if array is not None and rows is not None:
            array = samples(array, rows, self.batch_axis)
        if isinstance(array, mx.nd.sparse.BaseSparseNDArray) and name not in self.spec.inputs:
            array = array.tostype("default")  # losses and metrics read sizes, which sparse arrays lack
        dtype: Any = self._cast(name, array)
        if array is not None and name in self._missing:
            dtype = sought_in(array.dtype, dtype)  # cast only after its missing values are found
        return place(array, context, dtype)

    def target(self, name: str, dtype: Any) -> str | None:
        """Return the dtype to which a slot of this dtype is cast; None if it is fine."""
        if name in self._dtypes:
            return str(self._dtypes[name])
        cast = self._casts.get(name) or cast_dtype(dtype, self._real)
        was_real = np.dtype(cast or dtype) != self._real and self.was_real(name)
        return self._real if was_real else cast

    def dtype_name(self, dtype: Any) -> str:
        """Return the name of a dtype, such as float32."""
        return str(np.dtype(dtype).name)

    def known_as(self, dtype: Any) -> Any:
        """Return what stands for a dtype in signatures."""
        return self.dtype_name(dtype)

    def _cast(self, name: str, array: RawArray | None) -> str | None:
        """Return the dtype to which a slot is cast; None if its own is fine."""
        return None if array is None else self.target(name, array.dtype)

    def _apply_change(self, batch: Batch) -> Batch:
        if self._absent:
            batch.absent, batch.signature = self._absent, None
            batch.slots = [{name: slots.get(name) for name in self.spec.slot_names} for slots in batch.slots]
        if self._missing:
            batch.slots = [self._missing.replace(slots, self._cast) for slots in batch.slots]
            batch.signature = None
        if self._weights:
            sizes, add = batch.sizes, self._weights.add
            batch.slots = [add(slots, size, batch.axis) for slots, size in zip(batch.slots, sizes)]
            batch.signature = None
        if self._change is not None:
            batch.slots, batch.signature = [self._change(slots) for slots in batch.slots], None
        if self._fill_in is not None:
            self._fill_in(batch)
        return batch
