"""Turn what a loader yields into named tensors on the device."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..checks import batch_axis_problems, bind_slots, describe, form_problems, is_masked, slot_problems
from ..engines import task_splitter
from ..engines.raw_batches import arrays_in, names_in
from ..engines.shares import WHOLE, CurrentShare, Shards
from ..engines.task_splitter import Parts, joined_slots
from ..errors import Problem, raise_problems, user_code
from ..spec import TaskSpec
from ..spec.terms import TaskSlots
from .added_slots import CarriedState as CarriedState
from .added_slots import KnownLabels, MissingLabels
from .added_slots import ValueWeights as ValueWeights

MAX_SIGNATURES = 50  # that are remembered; with sequences of many lengths, there may be more
MAX_WAITING, MAX_BYTES = 64, 64 * 2**20  # batches that may wait for a GPU, and their size if more than two
SIGNED = {torch.uint16: torch.int32, torch.uint32: torch.int64, torch.uint64: torch.int64}

Slots = dict[str, Tensor | None]
SlotSignature = dict[str, tuple[tuple[int, ...], torch.dtype] | None]
"""The shape and the dtype of each slot of a batch, after casting; None for a label that is missing."""


@dataclass
class Batch:
    """A batch on the device.

    `raw` is what the loader yielded. `samples` is this process's number of samples; `total` is that of all
    processes that train together, None until it has been summed. `slots` has the tensors by slot, with the
    samples along `axis`; it is empty if the process has no samples. `absent` names the slots that the batch
    lacks; their tensors are None.
    """

    raw: object
    samples: int
    slots: Slots = field(default_factory=dict)
    axis: int = 0
    total: int | None = None
    absent: frozenset[str] = frozenset()


def as_tensor(value: Any) -> Any:
    """Return numbers of any library as a tensor, which shares their memory if it can; other things as is."""
    if isinstance(value, Tensor) or value is None:
        return value
    if not isinstance(value, np.ndarray):
        if hasattr(value, "asnumpy"):  # MXNet's
            value = value.asnumpy()
        elif hasattr(value, "tocsr"):  # SciPy's
            value = value.toarray()
        elif hasattr(value, "__array__") or isinstance(value, (int, float)) or _holds_numbers(value):
            with suppress(ValueError):  # of rows that differ in length
                value = np.asarray(value)
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiub" or is_masked(value):
        return value  # which the checks of slots name
    if value.dtype.itemsize > 8:
        value = value.astype("float64")
    flags = value.flags
    if not flags.c_contiguous or not flags.writeable or not value.dtype.isnative:
        value = np.array(value, value.dtype.newbyteorder("="), order="C")  # not all others can be a tensor
    return torch.from_numpy(value)


def _holds_numbers(value: object) -> bool:
    """Whether a list, perhaps of lists, begins with a number; other lists are nested arrays."""
    while isinstance(value, list) and value:
        value = value[0]
    return isinstance(value, (int, float))


def cast_line(name: str, before: torch.dtype, after: torch.dtype) -> str:
    """Return what is logged of a slot that is cast."""
    names = [str(each).removeprefix("torch.") for each in (before, after)]
    return f'the slot "{name}" is {names[0]} and is cast to {names[1]}, batch by batch'


class Uploads:
    """Copies tensors to the device.

    On a GPU, they are copied through pinned memory, which does not wait for earlier batches; the number of
    batches that wait for the GPU is limited, as each takes memory.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._on_gpu = device, device.type != "cpu"
        self._waiting: deque[tuple[Any, int]] = deque()  # when a batch is copied, and its size in bytes

    def __call__(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """Return a tensor on the device, in this dtype; it may be the tensor itself."""
        if self._on_gpu and tensor.device.type == "cpu":  # pragma: no cover, as this needs a GPU
            if dtype.itemsize < tensor.itemsize:
                tensor = tensor.to(dtype)  # fewer bytes are copied
            tensor = tensor.pin_memory().to(self._device, non_blocking=True)
        return tensor.to(self._device, dtype)

    def submitted(self, slots: Slots) -> None:
        """Wait for earlier batches if too many wait; `slots` are those of a batch that was just copied."""
        if self._on_gpu:  # pragma: no cover, as this needs a GPU
            copied = torch.cuda.Event()
            copied.record(torch.cuda.current_stream(self._device))
            self._waiting.append((copied, sum(each.nbytes for each in slots.values() if each is not None)))
            while len(self._waiting) > MAX_WAITING or (
                len(self._waiting) > 2 and sum(size for _, size in self._waiting) > MAX_BYTES
            ):
                self._waiting.popleft()[0].synchronize()


class BatchSplitter:
    """Names, checks, casts and places the arrays of raw batches, for one TaskSpec.

    A raw batch is a mapping by slot, or arrays in the order of the slots, perhaps nested: tensors, arrays of
    NumPy or MXNet, or lists of numbers. It is checked only if its shapes and dtypes are new. Whole numbers
    that are labels become int64, and real numbers `real`, the dtype of the net's parameters; labels with a
    declared dtype have that.

    With `labels`, a batch must have the form of the first one; without, its labels may be left out.
    `log_once` is called with a line to log, once for each slot that is cast. ``change(slots) -> slots`` lets
    handlers change the slots. New :data:`SlotSignature`s are appended to `signatures`, which keeps the last
    `MAX_SIGNATURES`. `current` says which part of a batch belongs to this process. `own` maps the names in a
    batch to slots, if the batch lacks some slots or names them differently. ``fill_in(batch)`` adds slots
    that no batch holds. `known` are the shapes and dtypes of labels that may be missing, as all batches of
    the stage have shown them. `before` are the signatures of batches of the same slots, in whichever stage.
    `casts` are the dtypes of slots that net or losses cannot take as they are; the check of the first batch
    adds to it. `weights` adds the slots with the weights of losses' values.
    """

    def __init__(
        self,
        spec: TaskSpec,
        device: torch.device,
        log_once: Callable[[str], None],
        *,
        labels: bool = True,
        batch_axis: int = 0,
        change: Callable[[Slots], Slots] | None = None,
        signatures: list[SlotSignature] | None = None,
        real: torch.dtype = torch.float32,
        current: CurrentShare | None = None,
        own: TaskSlots | None = None,
        fill_in: Callable[[Batch], None] | None = None,
        known: KnownLabels | None = None,
        casts: Mapping[str, torch.dtype] | None = None,
        before: Sequence[list[SlotSignature]] = (),
        weights: ValueWeights | None = None,
    ) -> None:
        self.spec, self._log_once, self.labels, self.batch_axis = spec, log_once, labels, batch_axis
        self.signatures = [] if signatures is None else signatures
        self._change, self._fill_in, self._weights = change, fill_in, weights
        self._real, self._before, self._casts = real, before, {} if casts is None else casts
        self._dtypes = {name: getattr(torch, ls.dtype) for name, ls in spec.label_specs.items() if ls.dtype}
        self._missing = MissingLabels(spec.label_specs, known)
        self._upload = Uploads(device)
        self._checked: set[tuple[Any, ...]] = set()
        self._layouts: dict[Any, list[tuple[str, int]]] = {}  # the position of each slot, by form
        self._first: dict[str, Any] = {}
        self._current = CurrentShare() if current is None else current
        self._own = {name: name for name in spec.batch} if own is None else own
        self._order = list(self._own.values())
        self._inputs = [name for name in spec.inputs if name in self._order]
        self._inputs_alone = {name for name, slot in self._own.items() if slot in self._inputs}
        self._absent = frozenset(() if own is None else spec.slot_names) - frozenset(self._order)

    def split(self, raw: Any) -> Batch:
        """Return the batch, named, cast and placed; `raw` is None if this process has no samples of it.

        Raises DataError if slots or dtypes are not as declared.
        """
        if raw is None and self._current.share is not WHOLE:
            total = self._current.share.total(0)
            return Batch(raw, 0, axis=self.batch_axis, total=total, absent=self._absent)
        form, tensors = self._form_of(raw)
        layout = self._layouts.get(form)
        if layout is not None:
            return self.distribute(raw, [{name: tensors[i] for name, i in layout}])
        converted = raw if form is None else dict(zip(raw, tensors)) if type(raw) is dict else tensors
        parts, problems = self.name_arrays(converted)
        raise_problems(problems)
        positions = {id(tensor): i for i, tensor in enumerate(tensors)}
        if form is not None and len(positions) == len(tensors) and len(self._layouts) < MAX_SIGNATURES:
            [slots] = parts
            if all(id(tensor) in positions for tensor in slots.values()):
                self._layouts[form] = [(name, positions[id(tensor)]) for name, tensor in slots.items()]
        return self.distribute(raw, parts)

    def name_arrays(self, raw: Any) -> tuple[list[Slots], list[Problem]]:
        """Return a list of one dict, a raw batch's tensors by slot, not placed yet, and the problems found.

        The parts of a batch that is split already are joined.
        """
        unnamed = raw
        if self.spec.batch_fn is not None:
            with user_code(lambda: f"batch_fn, called with batch {describe.structure(raw)}"):
                unnamed = self.spec.batch_fn(raw)
            if unnamed is None:
                return [], [Problem("data", "batch_fn returns None; let it return the batch")]
        if not isinstance(unnamed, Shards):
            slots, problems = self.bind(unnamed)
            return [slots], problems
        bound = [self.bind(part) for part in unnamed]
        named, problems = [slots for slots, _ in bound], [each for _, found in bound for each in found]
        if not named:
            problems = [Problem("data", "the batch is split into no parts; give one or more")]
        if problems:
            return named, problems
        joined: Slots = {}
        for name in named[0]:
            tensors: list[Any] = [part[name] for part in named if part[name] is not None]
            try:
                joined[name] = torch.cat(tensors, self.batch_axis) if tensors else None
            except (RuntimeError, IndexError) as error:
                problems.append(Problem("data", f'the slot "{name}" of parts {describe.arrays(tensors)}: {error}'))
        return [joined], problems

    def bind(self, unnamed: Any) -> tuple[Slots, list[Problem]]:
        """Return the tensors of a batch, or of a part of one, by slot, and the problems found.

        `unnamed` is the raw batch, or what `batch_fn` returned for it.
        """
        names = names_in(unnamed)
        if type(unnamed) in (list, tuple):
            unnamed = [as_tensor(each) if type(each) is list else each for each in unnamed]
        flat = arrays_in(unnamed, self.batch_axis, as_tensor, concatenate=torch.cat)
        if len(names) == len(flat) and self._are_slots(set(names)):
            flat = dict(zip(names, flat))
        if isinstance(flat, dict):
            flat = {self._own.get(name, name): tensor for name, tensor in flat.items()}
        slots, problems = bind_slots(self._order, self._inputs, flat, self.labels, self.spec.state)
        if len(slots) > len(self.spec.slot_names) or self.spec.unused:
            slots = {name: tensor for name, tensor in slots.items() if name in self.spec.slot_names}
        if not problems and self.labels and self._missing:
            slots, problems = self._missing.fill_in(slots, self.batch_axis)
        if problems:
            return slots, problems
        kinds = [(getattr(each, "shape", None), getattr(each, "dtype", None)) for each in slots.values()]
        form = len(self._casts), *kinds
        if form not in self._checked:
            problems = slot_problems(slots, self.batch_axis)
            if not problems and self.labels:
                problems = form_problems(slots, self.spec.inputs, self._first)
            elif not problems:
                problems = batch_axis_problems(slots, self._known_shapes())
            if not problems:
                self._checked.add(form)
                self._remember(slots)
        return slots, problems

    def distribute(self, raw: Any, parts: Sequence[Slots]) -> Batch:
        """Place this process's share of the named tensors on the device."""
        [named] = parts
        axis, share = self.batch_axis, self._current.share
        count = next(each.shape[axis] for each in named.values() if each is not None)
        first, (size,) = (0, [count]) if share is WHOLE else share.cut(count, devices=1)
        batch = Batch(raw, size, axis=axis, total=share.total(count), absent=self._absent)
        if not size:
            return batch
        slots: Slots = {}
        for name, tensor in named.items():
            if tensor is not None:
                # labels are cast only after their missing values are found
                dtype = tensor.dtype if name in self._missing else self._dtype_of(name, tensor.dtype)
                tensor = self._upload(tensor if size == count else tensor.narrow(axis, first, size), dtype)
            slots[name] = tensor
        self._upload.submitted(slots)
        if self._absent:
            slots = {name: slots.get(name) for name in self.spec.slot_names}
        if self._missing:
            slots = self._missing.replace(slots, self._dtype_of)
        if self._weights:
            slots = self._weights.add(slots, size, axis)
        batch.slots = slots if self._change is None else self._change(slots)
        if self._fill_in is not None:
            self._fill_in(batch)
        return batch

    def _form_of(self, raw: Any) -> tuple[Any, list[Tensor]]:
        """Return what says which array of a batch is which slot, None if that is not simple; its tensors."""
        if type(raw) not in (dict, list, tuple) or self.spec.batch_fn is not None:
            return None, []
        tensors = [as_tensor(each) for each in (raw.values() if type(raw) is dict else raw)]
        if any(type(each) is not Tensor for each in tensors):
            return None, []
        names = tuple(raw) if type(raw) is dict else None
        return (names, len(self._casts), *[(each.shape, each.dtype) for each in tensors]), tensors

    def _are_slots(self, names: set[str]) -> bool:
        """Whether the arrays of a batch are named after its slots; an iterator's default names are not."""
        return names == self._own.keys() or (not self.labels and names == self._inputs_alone)

    def _known_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of slots in the last batches before, for batches that have no first one."""
        known = [signature for batches in self._before for signature in batches[-1:]]
        return {name: slot[0] for signature in known for name, slot in signature.items() if slot is not None}

    def _dtype_of(self, name: str, dtype: torch.dtype) -> torch.dtype:
        """Return the dtype to which a slot of this dtype is cast."""
        cast = self._dtypes.get(name) or self._casts.get(name)
        if cast is not None:
            return cast
        if dtype.is_floating_point or self._was_real(name):
            return self._real
        is_whole = dtype is not torch.bool and not dtype.is_complex
        return torch.int64 if is_whole and name in self.spec.label_specs else SIGNED.get(dtype, dtype)

    def _was_real(self, name: str) -> bool:
        """Whether a slot held real numbers in the batch before; net and losses may not run with others."""
        known = [self.signatures] if self.labels else self._before
        slots = [batches[-1].get(name) for batches in known if batches]
        return any(slot is not None and slot[1] == self._real for slot in slots)

    def _remember(self, slots: Slots) -> None:
        """Log the casts of a new form of batches, and append its signature."""
        signature: SlotSignature = {}
        for name, tensor in slots.items():
            dtype = None if tensor is None else self._dtype_of(name, tensor.dtype)
            signature[name] = None if tensor is None or dtype is None else (tuple(tensor.shape), dtype)
            if tensor is not None and dtype not in (None, tensor.dtype) and name not in self._dtypes:
                self._log_once(cast_line(name, tensor.dtype, dtype))
        if signature in self.signatures:
            self.signatures.remove(signature)
        self.signatures.append(signature)
        del self.signatures[:-MAX_SIGNATURES]


class TaskSplitter(task_splitter.TaskSplitter):
    """Splits the batches of several loaders into tensors."""

    def join(self, parts: Parts) -> tuple[Slots, list[Problem]]:
        """Return the slots of the batch that the loaders' batches make together, and the problems found."""
        missing = MissingLabels(self._spec.label_specs)
        return joined_slots(self._spec, parts, missing, _common_dtype, lambda rows, _: torch.cat(rows))


def _common_dtype(tensors: Sequence[Tensor]) -> torch.dtype:
    return reduce(torch.promote_types, [each.dtype for each in tensors])
