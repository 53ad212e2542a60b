"""Find the arrays in whatever a loader yields."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

import numpy as np

from ...spec.names import leaves
from ..compat import mx
from .arrays import as_array, samples


def arrays_in(raw: Any, batch_axis: int) -> dict[str, Any] | list[Any]:
    """Return a batch's arrays, by name if the batch is a mapping, else in order.

    A batch is a mapping, an array, nested lists and tuples of arrays, a DataBatch, or a list of DataBatches,
    one per device of the iterator (DALI's iterators yield these), which are joined. Rows that only pad a
    DataBatch are dropped.
    """
    if isinstance(raw, Mapping):
        return {key: as_array(value) for key, value in raw.items()}
    parts = raw if isinstance(raw, (list, tuple)) else [raw]
    if parts and all(map(_is_data_batch, parts)):
        return [
            _join(arrays, batch_axis) for arrays in zip(*(_without_padding(p, batch_axis) for p in parts))
        ]
    return [as_array(leaf) for _, leaf in leaves(raw)]


def _is_data_batch(value: Any) -> bool:
    if isinstance(value, (mx.nd.NDArray, np.ndarray)):
        return False  # reading the attribute `data` of some arrays raises
    return isinstance(value, mx.io.DataBatch) or isinstance(getattr(value, "data", None), list)


def _without_padding(batch: Any, axis: int) -> list[Any]:
    arrays = [*batch.data, *(getattr(batch, "label", None) or [])]
    pad = getattr(batch, "pad", 0) or 0
    if not pad:
        return arrays
    return [samples(array, slice(0, array.shape[axis] - pad), axis) for array in arrays]


def _join(arrays: Sequence[Any], axis: int) -> Any:
    if len(arrays) == 1:
        return as_array(arrays[0])
    return mx.nd.concat(*[array.as_in_context(arrays[0].context) for array in arrays], dim=axis)
