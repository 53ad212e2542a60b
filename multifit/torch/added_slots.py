"""The slots that are added to batches, as tensors."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ..engines import added_slots
from ..spec.terms import Term
from ..utils.protocols import Shape


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

    full, dtype_name = staticmethod(torch.full), staticmethod(dtype_name)
    can_represent = staticmethod(can_represent)

    def constant(self, values: Tensor, number: int) -> Tensor:
        return torch.full_like(values, number, dtype=torch.bool)

    def spread(self, column: Tensor, values: Tensor) -> Tensor:
        return column.expand_as(values)

    def masked(self, values: Tensor, present: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        return values.masked_fill(~present, 0).to(dtype), present.to(torch.float32)


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


class CarriedState(added_slots.CarriedState):
    """The outputs that are inputs of the next batch, as tensors."""

    equal_batches = "drop_last=True"

    def zeros(self, shape: Shape, device: torch.device) -> Tensor:
        return torch.zeros(shape, dtype=self._dtype, device=device)

    def copied(self, array: Tensor, device: torch.device) -> Tensor:
        return array.detach().to(device, self._dtype, copy=True)
