"""The slots that are added to a batch: where labels are present, weights of values, and carried state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..checks import describe
from ..engines import added_slots
from ..errors import DataError, SpecError
from ..spec import LabelSpec
from ..spec.names import NAN
from ..spec.parsing import presence
from ..spec.terms import Term

if TYPE_CHECKING:
    from .batch import Batch, Slots


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype, such as float32."""
    return str(dtype).removeprefix("torch.")


@cache  # called for every batch
def can_represent(dtype: torch.dtype, value: float) -> bool:
    """Whether tensors of a dtype can represent a value, real ones after rounding it."""
    if dtype.is_floating_point or dtype is torch.bool:
        return dtype is not torch.bool or value in (0, 1)
    limits = torch.iinfo(dtype)
    return limits.min <= value <= limits.max and value == int(value)


class MissingLabels(added_slots.MissingLabels):
    """Replaces missing labels in tensors, without waiting for the device."""

    dtype_name, can_represent = staticmethod(dtype_name), staticmethod(can_represent)

    def full(self, shape: tuple[int, ...], value: float, dtype: torch.dtype) -> Tensor:
        return torch.full(shape, value, dtype=dtype)

    def replace(self, slots: Slots, target: Callable[[str, torch.dtype], torch.dtype | None]) -> Slots:
        """Return the slots with 0 in place of missing values, and slots that say what is present.

        ``target(name, dtype)`` returns the dtype to which a label is then cast; None if its own is fine.
        """
        replaced = dict(slots)
        for name, label in self._labels.items():
            values = slots.get(name)
            if values is not None:  # labels may be left out when predicting
                dtype = target(name, values.dtype) or values.dtype
                if values.is_floating_point() and dtype.is_floating_point:
                    # -999.9 in float32 is not the same number as in float64
                    values = values.to(min(values.dtype, dtype, key=attrgetter("itemsize")))
                present = self._present(label, values, slots)
                replaced[name] = values.masked_fill(~present, 0).to(dtype)
                replaced[presence(name)] = present.to(torch.float32)
        return replaced

    def _present(self, label: LabelSpec, values: Tensor, slots: Slots) -> Tensor:
        """Return where a label is present, bool, of the label's shape."""
        missing: Any = label.missing
        if missing == NAN:
            return values == values
        if not isinstance(missing, str):
            found = can_represent(values.dtype, missing)
            return values != missing if found else torch.ones_like(values, dtype=torch.bool)
        mask = slots[missing]
        if mask is None:
            return torch.zeros_like(values, dtype=torch.bool)
        if mask.numel() == values.numel():
            return (mask != 0).reshape(values.shape)
        if mask.numel() != len(values):
            raise self.misfit(label, mask, values)
        return (mask != 0).reshape(-1, *[1] * (values.dim() - 1)).expand_as(values)


class ValueWeights(added_slots.ValueWeights):
    """Adds to each batch the slots with the weights of the losses' values, as tensors.

    A slot has the shape of the loss's first label if there are weights of classes, or if `sample_weight` has
    as many values. Otherwise, it has one weight for each sample, (N,).
    """

    def new_table(self, weights: tuple[float, ...], device: torch.device) -> Tensor:
        return torch.tensor(weights, dtype=self._real, device=device)

    def weights_of(self, term: Term, slots: Mapping[str, Any], size: int, axis: int) -> Tensor:
        label: Any = slots[term.labels[0].name] if term.labels else None
        of_classes: Any = None
        if term.spec.class_weights is not None:
            table = self.table(term, label.device)
            of_classes = table[label.long().clamp(0, len(table) - 1)]
        if term.spec.sample_weight is None:
            return of_classes
        weights: Tensor = slots[term.spec.sample_weight].to(self._real)
        if label is not None and weights.numel() == label.numel():
            weights = weights.reshape(label.shape)
        elif weights.numel() == size:
            weights = weights.reshape(-1)
        elif label is not None:
            raise self.misfit(term, weights, label)
        if of_classes is None:
            return weights
        if weights.shape != label.shape:
            weights = weights.reshape([size if i == axis else 1 for i in range(label.dim())])
        return of_classes * weights


class CarriedState:
    """The outputs of a stage's last batch that are inputs of the next one, without gradients.

    `shapes` are the shapes of these slots, with 0 for the number of samples; `dtype` is that of the net.
    """

    def __init__(
        self, shapes: Mapping[str, tuple[int, ...]], device: torch.device, dtype: torch.dtype
    ) -> None:
        self.shapes, self._device, self._dtype = shapes, device, dtype
        self._tensors: dict[str, Tensor] = {}

    def reset(self) -> None:
        """Begin with zeros again."""
        self._tensors = {}

    def fill_in(self, batch: Batch) -> None:
        """Add the state to a batch's slots; raises DataError if their numbers of samples differ."""
        for name, shape in self.shapes.items():
            wanted = tuple(size or batch.samples for size in shape)
            if name not in self._tensors:
                batch.slots[name] = torch.zeros(wanted, dtype=self._dtype, device=self._device)
                continue
            batch.slots[name] = self._tensors[name]
            if self._tensors[name].shape != wanted:
                before = self._tensors[name].shape[shape.index(0)]
                raise DataError(
                    f"state: {self._device} gets {batch.samples} samples of a batch, but the state of the "
                    f"previous batch has {before}; make all batches equally large: drop_last=True"
                )

    def keep(self, batch: Batch, outputs: Mapping[str, Tensor]) -> None:
        """Remember the outputs of a batch; raises SpecError if one does not have the shape of its slot."""
        for name in self.shapes if batch.samples else ():
            slot = batch.slots[name]
            if slot is None or outputs[name].shape != slot.shape:
                raise SpecError(
                    f'state: "{name}" is {describe.array(slot)} as an input, but the output "{name}" is '
                    f"{describe.array(outputs[name])}; declare the shape of the output, with 0 for the "
                    "number of samples"
                )
            # copied, because an output that is a parameter changes when that is updated
            self._tensors[name] = outputs[name].detach().to(self._dtype, copy=True)

    def state(self) -> dict[str, Tensor]:
        """Return the state, empty before the first batch, for a checkpoint."""
        return dict(self._tensors)

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore what :meth:`state` returned."""
        self._tensors = {name: tensor.to(self._device, copy=True) for name, tensor in state.items()}
