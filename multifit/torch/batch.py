"""Turn what a loader yields into named tensors on the device."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..checks import describe, is_masked
from ..engines import task_splitter
from ..engines.added_slots import KnownLabels
from ..engines.raw_batches import arrays_in
from ..engines.shares import WHOLE
from ..engines.splitter import MAX_SIGNATURES, Splitter
from ..engines.task_splitter import Parts, joined_slots
from ..errors import Problem, raise_problems
from ..spec import TaskSpec
from .added_slots import CarriedState as CarriedState
from .added_slots import MissingLabels, dtype_name
from .added_slots import ValueWeights as ValueWeights
from .user_code import user_code

MAX_WAITING, MAX_BYTES = 64, 64 * 2**20  # batches that may wait for a GPU, and their size if more than two
SIGNED = {torch.uint16: torch.int32, torch.uint32: torch.int64, torch.uint64: torch.int64}

Slots = dict[str, Tensor | None]


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
    """Return numbers of any library as a tensor, sharing NumPy's memory, and other things as they are."""
    if isinstance(value, Tensor) or value is None:
        return value
    if not isinstance(value, np.ndarray):
        if hasattr(value, "asnumpy"):  # MXNet's
            value = value.asnumpy()
        elif hasattr(value, "tocsr"):  # SciPy's
            value = value.toarray()
        elif hasattr(value, "__array__") or isinstance(value, (int, float)):
            value = np.asarray(value)
        elif _holds_numbers(value):
            with suppress(ValueError, Warning), warnings.catch_warnings():  # about rows that differ in length
                warnings.simplefilter("error")
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


class BatchSplitter(Splitter):
    """Names, checks, casts and places the arrays of raw batches, for one TaskSpec.

    A raw batch is a mapping by slot, or arrays in the order of the slots, perhaps nested: tensors, arrays of
    NumPy or MXNet, or lists of numbers. Whole numbers that are labels become int64, real numbers `real`.

    ``change(slots) -> slots`` lets handlers change the slots. ``fill_in(batch)`` adds slots that no batch
    holds. `known` are the shapes and dtypes of labels that may be missing, as all batches of the stage have
    shown them. `weights` adds the slots with the weights of losses' values. The `options` are those of
    :class:`Splitter`.
    """

    user_code = staticmethod(user_code)
    dtype_name = staticmethod(dtype_name)

    def known_as(self, dtype: Any) -> Any:
        """Return the dtype itself."""
        return dtype

    def __init__(
        self,
        spec: TaskSpec,
        device: torch.device,
        log_once: Callable[[str], None],
        *,
        change: Callable[[Slots], Slots] | None = None,
        real: torch.dtype = torch.float32,
        fill_in: Callable[[Batch], None] | None = None,
        known: KnownLabels | None = None,
        weights: ValueWeights | None = None,
        **options: Any,
    ) -> None:
        declared = {name: getattr(torch, each.dtype) for name, each in spec.label_specs.items() if each.dtype}
        missing = MissingLabels(spec.label_specs, known)
        super().__init__(spec, log_once, declared, missing, real, **options)
        self._change, self._fill_in, self._weights = change, fill_in, weights
        self._upload = Uploads(device)
        self._layouts: dict[Any, list[tuple[str, int]]] = {}  # the position of each slot, by form

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

    def arrays_in(self, unnamed: Any) -> dict[str, Any] | list[Any]:
        if isinstance(unnamed, (list, tuple)):
            unnamed = [as_tensor(each) for each in unnamed]
        return arrays_in(unnamed, self.batch_axis, as_tensor, concatenate=torch.cat)

    def name_parts(self, parts: Sequence[Any]) -> tuple[list[Slots], list[Problem]]:
        """Return a list of one dict, the tensors of a batch that is split already, and the problems found."""
        named, problems = super().name_parts(parts)
        if not named:
            problems = [Problem("data", "the batch is split into no parts; give one or more")]
        joined: Slots = {}
        for name in named[0] if not problems else ():
            tensors: list[Any] = [part[name] for part in named if part[name] is not None]
            try:
                joined[name] = torch.cat(tensors, self.batch_axis) if tensors else None
            except RuntimeError as error:
                message = (
                    f'the slot "{name}" of the parts cannot be joined: {describe.arrays(tensors)}; {error}'
                )
                problems.append(Problem("data", message))
        return [joined], problems

    def distribute(self, raw: Any, parts: Sequence[Slots]) -> Batch:
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
                dtype = None if name in self._missing else self.target(name, tensor.dtype)
                tensor = tensor if size == count else tensor.narrow(axis, first, size)
                tensor = self._upload(tensor, dtype or tensor.dtype)
            slots[name] = tensor
        self._upload.submitted(slots)
        if self._absent:
            slots = {name: slots.get(name) for name in self.spec.slot_names}
        if self._missing:
            slots = self._missing.replace(slots, self.target)
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

    def target(self, name: str, dtype: torch.dtype) -> torch.dtype | None:
        cast: Any = self._dtypes.get(name) or self._casts.get(name)
        if cast is None and (dtype.is_floating_point or self.was_real(name)):
            cast = self._real
        elif cast is None:
            is_label = name in self.spec.label_specs and dtype is not torch.bool and not dtype.is_complex
            cast = torch.int64 if is_label else SIGNED.get(dtype, dtype)
        return None if cast is dtype else cast


class TaskSplitter(task_splitter.TaskSplitter):
    """Splits the batches of several loaders into tensors."""

    def join(self, parts: Parts) -> tuple[Slots, list[Problem]]:
        missing = MissingLabels(self._spec.label_specs)
        return joined_slots(self._spec, parts, missing, _common_dtype, lambda rows, _: torch.cat(rows))


def _common_dtype(tensors: Sequence[Tensor]) -> torch.dtype:
    return reduce(torch.promote_types, [each.dtype for each in tensors])
