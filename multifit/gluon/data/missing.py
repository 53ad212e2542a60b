"""Labels that may be missing: find out where they are present, and replace missing values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np

from ...checks import describe
from ...errors import DataError, Problem
from ...protocols import Array, Shape, Slots
from ...spec import LabelSpec
from ...spec.names import NAN
from ...spec.parsing import is_missable, presence
from ..compat import mx
from .arrays import mxnet_dtype, place

KnownLabels = dict[str, tuple[Shape, Any]]
"""The shape and the dtype of each label that may be missing, in the last batch that had it."""


class MissingLabels:
    """Replaces missing labels before a loss sees them: masking the loss afterwards would leave NaN gradients.

    `labels` are all labels of a spec by name. `known` holds the shapes and dtypes that batches have shown,
    and is kept up to date.
    """

    def __init__(self, labels: Mapping[str, LabelSpec], known: KnownLabels | None = None) -> None:
        self._labels = {name: label for name, label in labels.items() if is_missable(label)}
        masks = {label.missing for label in self._labels.values() if isinstance(label.missing, str)} - {NAN}
        self._optional = list(dict.fromkeys([*self._labels, *sorted(masks)]))
        self._known: KnownLabels = {} if known is None else known

    def __bool__(self) -> bool:
        return bool(self._labels)

    def __contains__(self, name: str) -> bool:
        return name in self._labels

    def fill_in(self, arrays: dict[str, Any], batch_axis: int) -> tuple[dict[str, Any], list[Problem]]:
        """Return a batch's arrays, with arrays of missing values for labels that are None, and problems."""
        if batch_axis:
            message = "labels that may be missing need samples along axis 0, and batch_axis is"
            return arrays, [Problem("data", f"{message} {batch_axis}")]
        for name in self._optional:
            if arrays.get(name) is not None:
                self._known[name] = tuple(arrays[name].shape), arrays[name].dtype
        left_out = [name for name in self._optional if name in arrays and arrays[name] is None]
        sizes = [array.shape[0] for array in arrays.values() if array is not None and array.shape]
        if not left_out or not sizes:
            return arrays, []
        if problems := [problem for name in left_out if (problem := self._cannot_fill(name))]:
            return arrays, problems
        return {**arrays, **{name: self.rows(name, sizes[0], *self._known[name]) for name in left_out}}, []

    def problem_of(self, name: str, dtype: Any) -> str | None:
        """Return why an array of this dtype cannot say that a label is missing, or None."""
        missing = self._labels[name].missing if name in self._labels else None
        value = np.nan if missing == NAN else missing
        if isinstance(value, (str, type(None))) or _can_represent(dtype, value):
            return None
        kind, lacks = np.dtype(dtype).name, "NaN" if missing == NAN else f"{value:g}"
        return f'the label "{name}" is {kind}, which has no {lacks}; give floats, or missing= another value'

    def rows(self, name: str, size: int, shape: Shape, dtype: Any) -> np.ndarray:
        """Return a label's array for `size` samples that lack it, like a batch of this shape and dtype."""
        missing = self._labels[name].missing if name in self._labels else 0
        value = {NAN: np.nan}.get(missing, 0) if isinstance(missing, str) else missing
        return np.full((size, *shape[1:]), value, dtype)

    def replace(self, slots: Slots, cast: Callable[[str, Array], str | None]) -> Slots:
        """Return one device's slots, with 0 in place of missing values, and a slot that says what is present.

        ``cast(name, label)`` returns the dtype to which a label is then cast; None if its own is fine.
        """
        replaced: dict[str, Any] = dict(slots)
        for name, label in self._labels.items():
            values = slots.get(name)
            if values is not None:  # labels may be left out when predicting
                dtype = cast(name, values)
                present = _present(label, slots)
                known = mx.nd.where(present, values, mx.nd.zeros_like(values))
                replaced[name] = place(known, values.context, dtype)
                replaced[presence(name)] = present
        return replaced

    def _cannot_fill(self, name: str) -> Problem | None:
        why = "its shape is not known before a batch has it; begin with a batch that has it"
        if name in self._known:
            why = self.problem_of(name, self._known[name][1]) or ""
        return Problem("data", f'the slot "{name}" is None, and {why}') if why else None


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


def _present(label: LabelSpec, slots: Slots) -> Array:
    """Return 1 where a label is present, else 0: float32, of the label's shape."""
    values: Any = slots[label.name]
    missing: Any = label.missing
    if missing == NAN:
        present = values == values
    elif isinstance(missing, str):
        mask = slots[missing]
        present = mx.nd.zeros_like(values) if mask is None else mask != 0
    elif _can_represent(values.dtype, missing):
        present = values != missing
    else:
        present = mx.nd.ones_like(values)  # MXNet would round `missing`, and compare with another number
    return _like(label, present, values).astype("float32")


def _like(label: LabelSpec, present: Any, values: Any) -> Any:
    """Return `present` in the label's shape; a number per sample holds for all values of the sample."""
    if present.size == values.size:
        return present.reshape(values.shape)
    if present.size == len(values):
        return present.reshape((0,) + (1,) * (values.ndim - 1)).broadcast_like(values)
    raise DataError(
        f'labels["{label.name}"]: "{label.missing}" is {describe.array(present)}, and the label is '
        f"{describe.array(values)}; give one number for each sample, or one for each of its values"
    )
