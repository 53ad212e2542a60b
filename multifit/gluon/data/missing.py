"""Labels that may be missing: find out where they are present, and replace missing values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np

from ...engines import added_slots
from ...protocols import Shape, Slots
from ...spec import LabelSpec
from ...spec.names import NAN
from ...spec.parsing import presence
from ..compat import mx
from .arrays import mxnet_dtype, place


class MissingLabels(added_slots.MissingLabels):
    """Replaces missing labels in arrays of MXNet and NumPy."""

    def full(self, shape: Shape, value: float, dtype: Any) -> np.ndarray:
        """Return an array that is filled with a value."""
        return np.full(shape, value, dtype)

    def can_represent(self, dtype: Any, value: float) -> bool:
        """Whether arrays of a dtype can represent a value, real ones after rounding it."""
        return _can_represent(dtype, value)

    def dtype_name(self, dtype: Any) -> str:
        """Return the name of a dtype, such as float32."""
        return str(np.dtype(dtype).name)

    def replace(self, slots: Slots, cast: Callable[[str, Any], str | None]) -> Slots:
        """Return one device's slots, with 0 in place of missing values, and a slot that says what is present.

        ``cast(name, label)`` returns the dtype to which a label is then cast; None if its own is fine.
        """
        replaced: dict[str, Any] = dict(slots)
        for name, label in self._labels.items():
            values = slots.get(name)
            if values is not None:  # labels may be left out when predicting
                dtype = cast(name, values)
                present = self._present(label, slots)
                known = mx.nd.where(present, values, mx.nd.zeros_like(values))
                replaced[name] = place(known, values.context, dtype)
                replaced[presence(name)] = present
        return replaced

    def _present(self, label: LabelSpec, slots: Mapping[str, Any]) -> Any:
        """Return 1 where a label is present, else 0: float32, of the label's shape."""
        values, missing = slots[label.name], label.missing
        if missing == NAN:
            present = values == values
        elif isinstance(missing, str):
            mask = slots[missing]
            present = mx.nd.zeros_like(values) if mask is None else mask != 0
        elif missing is not None and _can_represent(values.dtype, missing):
            present = values != missing
        else:
            present = mx.nd.ones_like(values)  # MXNet would round `missing`, and compare with another number
        if present.size == values.size:
            present = present.reshape(values.shape)
        elif present.size == len(values):  # a number per sample holds for all values of the sample
            present = present.reshape((0,) + (1,) * (values.ndim - 1)).broadcast_like(values)
        else:
            raise self.misfit(label, present, values)
        return present.astype("float32")


@cache  # called for every batch
def _can_represent(dtype: Any, value: float) -> bool:
    """Whether arrays of a dtype can represent a value, real ones after rounding it."""
    kind = np.dtype(dtype).kind
    limits = np.iinfo(dtype) if kind in "iu" else None
    if limits is None:
        return kind == "f" or value in (0, 1)
    return limits.min <= value <= limits.max and value == int(value)


@cache
def sought_in(dtype: Any, cast: str | None) -> np.dtype[Any]:
    """Return the dtype in which a label is compared with its missing value, before it is cast to `cast`.

    Integers hold no NaN, and -999.9 in float16 is not the same number as in float32. So the label is compared
    in its own dtype or, if it is cast to floats of fewer digits, in those.
    """
    source, target = np.dtype(dtype), np.dtype(cast or dtype)
    is_shorter = target.kind == source.kind == "f" and target.itemsize < source.itemsize
    return target if is_shorter else mxnet_dtype(source)
