"""Turn what a loader yields into named arrays on every device."""

from __future__ import annotations

from typing import Any, Callable, Mapping, Optional

import numpy as np

from ...checks import bind_slots, slot_problems
from ...errors import Problem, raise_problems
from ...protocols import Context, Shape, Slots
from ...spec import TaskSpec
from ..user_code import user_code
from .arrays import RawArray, cast_dtype, place, samples
from .batches import Batch, BatchLayout, Signature, layout_of, signature_of
from .devices import shares
from .raw_batches import arrays_in

MAX_SIGNATURES = 50  # as many kinds of batches (sequences of many lengths) are remembered

SlotSignature = dict[str, Optional[tuple[Shape, str]]]
"""The shape and the dtype of each slot of a batch, after casting; None for a label that is missing."""


class BatchSplitter:
    """Names, checks, casts and places the arrays of raw batches, for one TaskSpec.

    A batch is checked only if its shapes and dtypes are new. `notice` is called with a line to log, once for
    each slot that is cast. `change(slots) -> slots` is what handlers make of each device's slots. New
    :data:`SlotSignature`s are appended to `signatures`, at most `MAX_SIGNATURES`. `real` is the dtype of the
    net's parameters, which its inputs and labels get if they are real numbers.
    """

    def __init__(
        self,
        spec: TaskSpec,
        contexts: list[Context],
        notice: Callable[[str], None],
        labels: bool = True,
        batch_axis: int = 0,
        change: Callable[[Slots], Slots] | None = None,
        signatures: list[SlotSignature] | None = None,
        real: str = "float32",
    ) -> None:
        self.spec, self.contexts, self.notice = spec, contexts, notice
        self.labels, self.batch_axis, self._change = labels, batch_axis, change
        self.signatures = [] if signatures is None else signatures
        self._real = real
        self._dtypes = {name: label.dtype for name, label in spec.label_specs.items() if label.dtype}
        self._checked: set[Signature] = set()
        self._layouts: dict[Signature, BatchLayout] = {}  # of batches that need neither cast nor splitting
        self._may_skip = len(contexts) == 1 and spec.batch_fn is None

    def split(self, raw: Any) -> Batch:
        """Return the batch, named, cast and placed.

        On one device, a list of NDArrays like an earlier one, which needed no cast, is not checked again: its
        layout says which array is which slot. Raises DataError if slots or dtypes are not as declared.
        """
        signature = signature_of(raw) if self._may_skip else None
        layout = None if signature is None else self._layouts.get(signature)
        if layout is not None:
            context, samples = self.contexts[0], layout.samples
            slots = layout.slots(raw, context)
            return self._apply_change(Batch(raw, samples, [context], [slots], [samples], layout.shapes))
        arrays, problems = self.name_arrays(raw)
        raise_problems(problems)
        if signature is not None:
            self._remember(signature, raw, arrays)
        return self.distribute(raw, arrays)

    def name_arrays(self, raw: Any) -> tuple[dict[str, Any], list[Problem]]:
        """Return the arrays of a raw batch by slot, not placed yet, and what is wrong with them."""
        unnamed = raw
        if self.spec.batch_fn is not None:
            with user_code(lambda: "batch_fn", ("batch", raw)):
                unnamed = self.spec.batch_fn(raw)
        flat = arrays_in(unnamed, self.batch_axis)
        named, problems = bind_slots(self.spec.batch or (), self.spec.inputs, flat, self.labels)
        arrays = {name: array for name, array in named.items() if name in self.spec.slot_names}
        signature = tuple((getattr(a, "shape", None), getattr(a, "dtype", None)) for a in arrays.values())
        if not problems and signature not in self._checked:
            problems = slot_problems(arrays, self.batch_axis) or self._empty(arrays)
            if not problems:
                self._checked.add(signature)
                self._log_casts(arrays)
                self._add_signature(arrays)
        return arrays, problems

    def distribute(self, raw: Any, arrays: Mapping[str, RawArray | None]) -> Batch:
        """Split named arrays over the devices; devices without samples are left out."""
        count = next(array.shape[self.batch_axis] for array in arrays.values() if array is not None)
        batch, start = Batch(raw, count), 0
        for context, size in zip(self.contexts, shares(count, len(self.contexts))):
            if size:
                rows = slice(start, start + size) if size < count else None
                batch.contexts.append(context)
                batch.sizes.append(size)
                batch.slots.append({n: self._place(n, a, rows, context) for n, a in arrays.items()})
            start += size
        return self._apply_change(batch)

    def _remember(self, signature: Signature, raw: Any, arrays: Mapping[str, Any]) -> None:
        casts = any(self._cast(name, array) for name, array in arrays.items())
        layout = None if casts else layout_of(raw, arrays, self.batch_axis)
        if layout is not None and len(self._layouts) < MAX_SIGNATURES:
            self._layouts[signature] = layout

    def _place(self, name: str, array: RawArray | None, rows: slice | None, context: Context) -> Any:
        if array is not None and rows is not None:
            array = samples(array, rows, self.batch_axis)
        return place(array, context, self._cast(name, array))

    def _cast(self, name: str, array: RawArray | None) -> str | None:
        """Return the dtype to which a slot is cast; None if its own is fine."""
        return self._dtypes.get(name) or (None if array is None else cast_dtype(array, self._real))

    def _apply_change(self, batch: Batch) -> Batch:
        if self._change is not None:
            batch.slots, batch.shapes = [self._change(slots) for slots in batch.slots], None
        return batch

    def _add_signature(self, arrays: Mapping[str, Any]) -> None:
        signature = {name: self._slot_signature(name, array) for name, array in arrays.items()}
        if signature in self.signatures:
            self.signatures.remove(signature)
        self.signatures.append(signature)
        del self.signatures[:-MAX_SIGNATURES]

    def _slot_signature(self, name: str, array: Any) -> tuple[Shape, str] | None:
        if array is None:
            return None
        dtype = self._cast(name, array) or array.dtype
        return tuple(array.shape), np.dtype(dtype).name

    def _empty(self, arrays: Mapping[str, Any]) -> list[Problem]:
        shapes = {name: array.shape for name, array in arrays.items() if array is not None}
        if any(shape[self.batch_axis] for shape in shapes.values()):
            return []
        slots = ", ".join(f"{name} {shape}" for name, shape in shapes.items()) or "None in every slot"
        return [Problem("data", f"the batch holds no sample: {slots}; leave empty batches out")]

    def _log_casts(self, arrays: Mapping[str, Any]) -> None:
        for name, array in arrays.items():
            dtype = None if name in self._dtypes else self._cast(name, array)
            if dtype is not None:
                before = np.dtype(array.dtype).name
                self.notice(f'the slot "{name}" is {before} and is cast to {dtype}, batch by batch')
