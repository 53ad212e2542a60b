"""Find the arrays in whatever a loader yields."""

from __future__ import annotations

import operator
from typing import Any, Iterator, Mapping, Sequence

import numpy as np

from ...checks import describe
from ...errors import DataError, shown
from ..compat import mx
from .arrays import as_array, samples

MAX_DEPTH = 100  # of nested lists


def arrays_in(raw: Any, batch_axis: int) -> dict[str, Any] | list[Any]:
    """Return a batch's arrays, by name if the batch is a mapping, else in order (see :func:`names_in`).

    A batch is a mapping, an array, nested lists and tuples of arrays, a DataBatch, or a list of DataBatches,
    one per device of the iterator, as DALI's iterators yield them; these are joined. Padding rows of a
    DataBatch are dropped. Raises DataError if the lists are nested too deeply, or if `pad` is not a number of
    rows.
    """
    if isinstance(raw, Mapping):
        return {key: as_array(value) for key, value in raw.items()}
    parts = raw if isinstance(raw, (list, tuple)) else [raw]
    if parts and all(map(_is_data_batch, parts)):
        return [
            _join(arrays, batch_axis) for arrays in zip(*(_without_padding(p, batch_axis) for p in parts))
        ]
    return [as_array(leaf) for leaf in _leaves(raw, MAX_DEPTH)]


def names_in(raw: Any) -> list[str]:
    """Return the array names of a namedtuple, a DataBatch or a list of DataBatches; empty if it has none."""
    if isinstance(raw, tuple) and hasattr(raw, "_fields"):
        return list(raw._fields)
    part = raw[0] if isinstance(raw, (list, tuple)) and raw else raw
    if not _is_data_batch(part):
        return []
    provided = (getattr(part, name, None) or [] for name in ("provide_data", "provide_label"))
    return [description[0] for descriptions in provided for description in descriptions]


def _leaves(raw: Any, depth: int) -> Iterator[Any]:
    if not isinstance(raw, (list, tuple)):
        yield raw
        return
    if not depth:
        raise DataError(
            f"the batch is nested {MAX_DEPTH} levels deep, or contains itself; make it a list of arrays"
        )
    for item in raw:
        yield from _leaves(item, depth - 1)


def _is_data_batch(value: Any) -> bool:
    if isinstance(value, (mx.nd.NDArray, np.ndarray)):
        return False  # reading the attribute `data` of some arrays raises
    return isinstance(value, mx.io.DataBatch) or isinstance(getattr(value, "data", None), list)


def _without_padding(batch: Any, axis: int) -> list[Any]:
    arrays = [as_array(array) for array in (*(batch.data or []), *(getattr(batch, "label", None) or []))]
    pad = getattr(batch, "pad", 0) or 0
    rows = min((array.shape[axis] for array in arrays if _has_axis(array, axis)), default=0)
    try:
        valid = 0 <= operator.index(pad) <= rows
    except TypeError:
        valid = False
    if pad and not valid:
        raise DataError(
            f"the DataBatch's pad is {shown(pad)}; valid is a number of rows up to {rows}, or None"
        )
    if not pad:
        return arrays
    rest = slice(0, rows - pad)
    return [samples(array, rest, axis) if _has_axis(array, axis) else array for array in arrays]


def _has_axis(array: Any, axis: int) -> bool:
    return len(getattr(array, "shape", ())) > axis


def _join(arrays: Sequence[Any], axis: int) -> Any:
    if len(arrays) == 1:
        return arrays[0]
    try:
        if all(isinstance(array, mx.nd.NDArray) for array in arrays):
            return mx.nd.concat(*[array.as_in_context(arrays[0].context) for array in arrays], dim=axis)
        if all(isinstance(array, np.ndarray) for array in arrays):
            return np.concatenate(arrays, axis)
    except (TypeError, ValueError, mx.MXNetError):
        pass  # they have other shapes, or dtypes that do not go together
    found = f"the DataBatches of one batch hold {describe.arrays(arrays)}"
    raise DataError(f"{found}; valid are arrays of one kind, of equal shapes but for the number of samples")
