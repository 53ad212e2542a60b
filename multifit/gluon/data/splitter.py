"""Turn what a loader yields into named arrays on every device."""

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from ...checks import batch_axis_problems, bind_slots, form_problems, is_masked, slot_problems
from ...engines.raw_batches import arrays_in, names_in
from ...engines.shares import WHOLE, CurrentShare, Shards
from ...errors import Problem, counted, raise_problems
from ...protocols import Context, Shape, Slots
from ...spec import TaskSpec
from ...spec.terms import TaskSlots
from ..compat import mx
from ..user_code import user_code
from .arrays import RawArray, Signature, as_array, cast_dtype, cast_line, concatenated, place, samples
from .batch import Batch, BatchLayout, layout_of, signature_of_list
from .missing import KnownLabels, MissingLabels, sought_in
from .value_weights import ValueWeights

MAX_SIGNATURES = 50  # that are remembered; with sequences of many lengths, there may be more

SlotSignature = dict[str, tuple[Shape, str] | None]
"""The shape and the dtype of each slot of a batch, after casting; None for a label that is missing."""

NamedArrays = Mapping[str, RawArray | None]


class BatchSplitter:
    """Names, checks, casts and places the arrays of raw batches, for one TaskSpec.

    A batch is checked only if its shapes and dtypes are new. With `labels`, it must have the form of the
    first batch; without, its labels may be left out. `log_once` is called with a line to log, once for each
    slot that is cast. `change(slots) -> slots` lets handlers change each device's slots. New
    :data:`SlotSignature`s are appended to `signatures`, which keeps the last `MAX_SIGNATURES`. `real` is the
    dtype of the net's parameters: inputs and labels that are real numbers are cast to it. `current` says
    which part of a batch belongs to this process. `own` maps the names in a batch to slots, if the batch
    lacks some slots or names them differently. `fill_in` adds slots that no batch holds. `known` are the
    shapes and dtypes of labels that may be missing, as all batches of the stage have shown them. `before` are
    the signatures of batches of the same slots, in whichever stage. `casts` are the dtypes of labels that
    losses cannot take as they are; the check of the first batch adds to it. `weights` adds the slots with the
    weights of losses' values.
    """

    def __init__(
        self,
        spec: TaskSpec,
        contexts: list[Context],
        log_once: Callable[[str], None],
        labels: bool = True,
        batch_axis: int = 0,
        change: Callable[[Slots], Slots] | None = None,
        signatures: list[SlotSignature] | None = None,
        real: str = "float32",
        current: CurrentShare | None = None,
        own: TaskSlots | None = None,
        fill_in: Callable[[Batch], None] | None = None,
        known: KnownLabels | None = None,
        before: Sequence[list[SlotSignature]] = (),
        casts: Mapping[str, str] | None = None,
        weights: ValueWeights | None = None,
    ) -> None:
        self.spec, self.contexts, self._log_once = spec, contexts, log_once
        self.labels, self.batch_axis, self._change = labels, batch_axis, change
        self.signatures = [] if signatures is None else signatures
        self._real, self._before, self._casts = real, before, {} if casts is None else casts
        self._dtypes = {name: label.dtype for name, label in spec.label_specs.items() if label.dtype}
        self._missing = MissingLabels(spec.label_specs, known)
        self._checked: set[tuple[Any, ...]] = set()
        self._first: dict[str, Any] = {}
        self._layouts: dict[Signature, BatchLayout] = {}  # of batches that need neither cast nor splitting
        self._may_skip = len(contexts) == 1 and spec.batch_fn is None
        self._current = CurrentShare() if current is None else current
        self._own = {name: name for name in spec.batch or ()} if own is None else own
        self._order = list(self._own.values())
        self._inputs = [name for name in spec.inputs if name in self._order]
        self._inputs_alone = {name for name, slot in self._own.items() if slot in self._inputs}
        self._fill_in, self._weights = fill_in, weights
        self._absent = frozenset(() if own is None else spec.slot_names) - frozenset(self._order)

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
            self._remember(signature, raw, parts[0])
        return self.distribute(raw, parts)

    def name_arrays(self, raw: Any) -> tuple[list[dict[str, Any]], list[Problem]]:
        """Return the arrays of a raw batch by slot, not placed yet, and the problems found.

        The arrays are a list of one part, or, if the batch is split already, of a part for each device.
        """
        unnamed = raw
        if self.spec.batch_fn is not None:
            with user_code(lambda: "batch_fn", ("batch", raw)):
                unnamed = self.spec.batch_fn(raw)
            if unnamed is None:
                return [], [Problem("data", "batch_fn returns None; let it return the batch")]
        if not isinstance(unnamed, Shards):
            arrays, problems = self.bind(unnamed)
            return [arrays], problems
        most = self._current.share.ranks * len(self.contexts)
        if not 0 < len(unnamed) <= most:
            parts, devices = counted(len(unnamed), "part"), counted(most, "device")
            message = f"the batch is split into {parts} for {devices}; give one part for each, or fewer"
            return [], [Problem("data", message)]
        named = [self.bind(part) for part in unnamed]
        return [arrays for arrays, _ in named], [p for _, problems in named for p in problems]

    def bind(self, unnamed: Any) -> tuple[dict[str, Any], list[Problem]]:
        """Return the arrays of a batch, or of a part of one, by slot, and the problems found.

        `unnamed` is the raw batch, or what `batch_fn` returned for it.
        """
        flat = arrays_in(unnamed, self.batch_axis, as_array, samples, concatenated)
        names = names_in(unnamed)
        if len(names) == len(flat) and self._are_slots(set(names)):
            flat = dict(zip(names, flat))
        if isinstance(flat, dict):
            flat = {self._own.get(name, name): array for name, array in flat.items()}
        named, problems = bind_slots(self._order, self._inputs, flat, self.labels, self.spec.state)
        arrays = {name: array for name, array in named.items() if name in self.spec.slot_names}
        if not problems and self.labels and self._missing:
            arrays, problems = self._missing.fill_in(arrays, self.batch_axis)
        signature = tuple(map(_kind, arrays.values()))
        if not problems and signature not in self._checked:
            problems = slot_problems(arrays, self.batch_axis)
            if not problems and self.labels:
                problems = form_problems(arrays, self.spec.inputs, self._first)
            elif not problems:
                problems = batch_axis_problems(arrays, self._known_shapes())
            if not problems:
                self._checked.add(signature)
                self._log_casts(arrays)
                self._add_signature(arrays)
        return arrays, problems

    def _known_shapes(self) -> dict[str, Shape]:
        """Return the shapes of slots in the last batches before, for batches that have no first one."""
        known = [signature for batches in self._before for signature in batches[-1:]]
        return {name: slot[0] for signature in known for name, slot in signature.items() if slot is not None}

    def _are_slots(self, names: set[str]) -> bool:
        """Whether the arrays of a batch are named after its slots; an iterator's default names are not."""
        return names == self._own.keys() or (not self.labels and names == self._inputs_alone)

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

    def _remember(self, signature: Signature, raw: Any, arrays: Mapping[str, Any]) -> None:
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

    def _cast(self, name: str, array: RawArray | None) -> str | None:
        """Return the dtype to which a slot is cast; None if its own is fine."""
        if array is None or name in self._dtypes:
            return self._dtypes.get(name)
        dtype = self._casts.get(name) or cast_dtype(array.dtype, self._real)
        return self._real if self._was_real(name, dtype or array.dtype) else dtype

    def _was_real(self, name: str, dtype: Any) -> bool:
        """Whether a slot has another dtype than in batches before, when it was that of the net.

        Net, losses and metrics have run with that, and may not run with whole numbers.
        """
        known = [self.signatures] if self.labels else self._before
        before = [batches[-1].get(name) for batches in known if batches and np.dtype(dtype) != self._real]
        return any(slot is not None and slot[1] == self._real for slot in before)

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

    def _log_casts(self, arrays: Mapping[str, Any]) -> None:
        for name, array in arrays.items():
            dtype = None if name in self._dtypes else self._cast(name, array)
            if dtype is not None:
                self._log_once(cast_line(name, array.dtype, dtype))


def _kind(array: Any) -> tuple[Any, ...]:
    """Return what the checks of an array depend on."""
    return getattr(array, "shape", None), getattr(array, "dtype", None), is_masked(array)
