"""Turn what a loader yields into named tensors on the device."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..engines import batch
from ..engines.added_slots import KnownLabels
from ..engines.batch import WHOLE
from ..engines.splitter import MAX_SIGNATURES, Splitter
from ..spec.checks import describe
from ..spec.checks.data import is_masked
from ..utils.errors import Problem, raise_problems
from .added_slots import CarriedState as CarriedState
from .added_slots import MissingLabels
from .added_slots import ValueWeights as ValueWeights
from .user_code import user_code

MAX_WAITING, MAX_BYTES = 64, 64 * 2**20  # batches that may wait for a GPU, and their size if more than two
SIGNED = {torch.uint16: torch.int32, torch.uint32: torch.int64, torch.uint64: torch.int64}

Slots = dict[str, Tensor | None]


@dataclass
class Batch(batch.Batch):
    """A batch on the device; `slots` has the tensors by slot, and is empty if the process has no samples."""

    slots: Slots = field(default_factory=dict)
    device: torch.device = torch.device("cpu")

    def devices(self) -> Iterator[tuple[torch.device, Slots, int]]:
        """Yield the device, the slots and the number of samples, unless the process has none."""
        if self.samples:
            yield self.device, self.slots, self.samples

    def map_slots(self, change: Callable[[Slots], Slots]) -> None:
        """Replace the slots."""
        self.slots = change(self.slots)


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


def common_dtype(tensors: Sequence[Tensor]) -> torch.dtype:
    """Return the dtype that holds the numbers of all tensors."""
    return reduce(torch.promote_types, [each.dtype for each in tensors])


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
    """Names, checks, casts and places the arrays of raw batches on one device.

    A raw batch is a mapping by slot, or arrays in the order of the slots, perhaps nested: tensors, arrays of
    NumPy or MXNet, or lists of numbers. Whole numbers that are labels become int64, real numbers `real`.
    """

    user_code, missing_labels, as_array = staticmethod(user_code), MissingLabels, staticmethod(as_tensor)
    dtype_of, known_as = staticmethod(partial(getattr, torch)), staticmethod(lambda dtype: dtype)
    concatenate, common_dtype = staticmethod(torch.cat), staticmethod(common_dtype)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        [self._device] = self.devices
        self._upload = Uploads(self._device)
        self._steady: dict[Any, tuple[list[tuple[str, int]], KnownLabels]] = {}  # by names, shapes and dtypes

    def split(self, raw: Any) -> Batch:
        """Return the batch, named, cast and placed; `raw` is None if this process has no samples of it.

        Raises DataError if slots or dtypes are not as declared.
        """
        share = self.seen.current.share
        if raw is None and share is not WHOLE:
            return Batch(raw, 0, self.batch_axis, share.total(0), self.absent)
        key, tensors = self._key_of(raw)
        if (steady := self._steady.get(key)) is not None:
            positions, known = steady
            self.seen.known.update(known)
            return self.distribute(raw, [{name: tensors[i] for name, i in positions}])
        converted = raw if key is None else dict(zip(raw, tensors)) if type(raw) is dict else tensors
        parts, problems = self.name_arrays(converted)
        raise_problems(problems)
        if key is not None and len(self._steady) < MAX_SIGNATURES:
            [slots] = parts
            if positions := self.positions(tensors, slots):
                known = {name: self.seen.known[name] for name in slots if name in self.seen.known}
                self._steady[key] = positions, known
        return self.distribute(raw, parts)

    def arrays_in(self, unnamed: Any) -> dict[str, Any] | list[Any]:
        if isinstance(unnamed, (list, tuple)):
            unnamed = [as_tensor(each) for each in unnamed]  # lists of numbers, which are not nested arrays
        return super().arrays_in(unnamed)

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

    def distribute(self, raw: Any, parts: Sequence[Mapping[str, Tensor | None]]) -> Batch:
        [named] = parts
        axis, share = self.batch_axis, self.seen.current.share
        count = next(each.shape[axis] for each in named.values() if each is not None)
        first, (size,) = (0, [count]) if share is WHOLE else share.cut(count, devices=1)
        placed = Batch(raw, size, axis, share.total(count), self.absent, {}, self._device)
        for name, tensor in named.items() if size else ():
            if tensor is not None:
                dtype = self.target(name, tensor.dtype) or tensor.dtype
                if name in self.missing.labels:  # cast only after its missing values are found
                    dtype = sought_in(tensor.dtype, dtype)
                tensor = tensor if size == count else tensor.narrow(axis, first, size)
                tensor = self._upload(tensor, dtype)
            placed.slots[name] = tensor
        if size:
            self._upload.submitted(placed.slots)
            for change in self.changes:
                change(placed)
        return placed

    def target(self, name: str, dtype: torch.dtype) -> torch.dtype | None:
        cast: Any = self.dtypes.get(name) or self.seen.casts.get(name)
        if cast is None and (dtype.is_floating_point or self.was_real(name)):
            cast = self.real
        elif cast is None:
            is_label = name in self.spec.label_specs and dtype is not torch.bool and not dtype.is_complex
            cast = torch.int64 if is_label else SIGNED.get(dtype, dtype)
        return None if cast is dtype else cast

    def _key_of(self, raw: Any) -> tuple[Any, list[Tensor]]:
        """Return what says which array of a batch is which slot, None if that is not simple; its tensors."""
        if type(raw) not in (dict, list, tuple) or self.spec.batch_fn is not None:
            return None, []
        tensors = [as_tensor(each) for each in (raw.values() if type(raw) is dict else raw)]
        if any(type(each) is not Tensor for each in tensors):
            return None, []
        names = tuple(raw) if type(raw) is dict else None
        return (names, len(self.seen.casts), *[(each.shape, each.dtype) for each in tensors]), tensors


def sought_in(dtype: torch.dtype, target: torch.dtype) -> torch.dtype:
    """Return the dtype in which a label is compared with its missing value, before it is cast to `target`.

    -999.9 in float32 is not the same number as in float64.
    """
    is_shorter = dtype.is_floating_point and target.is_floating_point and target.itemsize < dtype.itemsize
    return target if is_shorter else dtype
