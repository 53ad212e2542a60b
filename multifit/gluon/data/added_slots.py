"""The slots that are added to batches, as arrays of MXNet."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from ...engines import added_slots
from ...spec.terms import Term
from ...utils.protocols import Array, Context, Shape
from ..compat import mx
from ..losses import weighs_values
from .arrays import moved, new_array


def dtype_name(dtype: Any) -> str:
    """Return the name of a dtype, such as float32."""
    return np.dtype(dtype).name


@cache  # called for every batch
def can_represent(dtype: Any, value: float) -> bool:
    """Whether arrays of a dtype can represent a value, real ones after rounding it."""
    if np.dtype(dtype).kind not in "iu":
        return np.dtype(dtype).kind == "f" or value in (0, 1)
    limits = np.iinfo(dtype)
    return limits.min <= value <= limits.max and value == int(value)


class MissingLabels(added_slots.MissingLabels):
    """Replaces missing labels in arrays of MXNet and NumPy."""

    full, dtype_name = staticmethod(np.full), staticmethod(dtype_name)
    can_represent = staticmethod(can_represent)

    def constant(self, values: Any, number: int) -> Any:
        return (mx.nd.ones_like if number else mx.nd.zeros_like)(values)

    def spread(self, column: Any, values: Any) -> Any:
        return column.broadcast_like(values)

    def masked(self, values: Any, present: Any, dtype: Any) -> tuple[Any, Any]:
        present = present.astype("float32")
        known = mx.nd.where(present, values, mx.nd.zeros_like(values))
        return moved(known, values.context, dtype), present


class ValueWeights(added_slots.ValueWeights):
    """Adds the weights of the losses' values.

    A slot has the shape of the loss's label, or of `sample_weight` if there are no class weights and the loss
    takes none for single values.
    """

    def new_table(self, weights: tuple[float, ...], device: Any) -> Any:
        return new_array(np.array(weights), device, self._real)

    def weights_of(self, term: Term, slots: Mapping[str, Any], size: int, axis: int) -> Any:
        label: Any = slots[term.labels[0].name] if term.labels else None
        weights = None
        if term.spec.class_weights is not None:
            weights = mx.nd.take(self.table(term, label.context), label)
        if term.spec.sample_weight is None:
            return weights
        samples = slots[term.spec.sample_weight].astype(self._real)
        if weights is not None or (term.labels and weighs_values(term.spec.fn)):
            if samples.size == label.size:
                samples = samples.reshape(label.shape)
            elif samples.size == size:  # a number per sample holds for all values of the sample
                shape = [size if i == axis else 1 for i in range(label.ndim)]
                samples = samples.reshape(shape).broadcast_like(label)
            else:
                raise self.misfit(term, samples, label)
        return samples if weights is None else weights * samples


class CarriedState(added_slots.CarriedState):
    """The outputs that are inputs of the next batch, as arrays of MXNet."""

    equal_batches = 'last_batch="discard"'

    def zeros(self, shape: Shape, device: Context) -> Array:
        return mx.nd.zeros(shape, ctx=device, dtype=self._dtype)

    def copied(self, array: Array, device: Context) -> Array:
        return array.copyto(device)
