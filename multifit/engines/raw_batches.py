"""Find the arrays in what a loader yields, and their names."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np


def samples(array: Any, rows: slice, axis: int) -> Any:
    """Return some samples of an array."""
    return array[(slice(None),) * axis + (rows,)]


def arrays_in(
    raw: Any,
    batch_axis: int,
    as_array: Callable[[Any], Any],
    samples: Callable[[Any, slice, int], Any] = samples,
    concatenate: Callable[[Sequence[Any], int], Any] = np.concatenate,
) -> dict[str, Any] | list[Any]:
    """Return a batch's arrays, by name if the batch is a mapping, else in order (see :func:`names_in`).

    A batch is a mapping, an array, nested lists and tuples of arrays, a DataBatch of MXNet's, or a list of
    DataBatches, one per device of the iterator, as DALI's iterators yield them; these are joined. Padding
    rows of a DataBatch are dropped. `as_array` turns each value into an array of the engine's, and
    ``samples(array, rows, axis)`` and ``concatenate(arrays, axis)`` cut and join these.
    """
    if isinstance(raw, Mapping):
        return {key: as_array(value) for key, value in raw.items()}
    parts = raw if isinstance(raw, (list, tuple)) else [raw]
    if not parts or not all(map(_is_data_batch, parts)):
        return [as_array(leaf) for leaf in _leaves(raw)]
    columns = []
    for part in parts:
        values = (*(part.data or ()), *(getattr(part, "label", None) or ()))
        arrays, pad = list(map(as_array, values)), getattr(part, "pad", 0)
        for i, array in enumerate(arrays) if pad else ():
            if getattr(array, "ndim", 0) > batch_axis:
                rows = slice(0, max(0, array.shape[batch_axis] - pad))
                arrays[i] = samples(array, rows, batch_axis)
        columns.append(arrays)
    joined = []
    for column in zip(*columns):
        strange = [each for each in column if getattr(each, "ndim", 0) <= batch_axis]
        if strange or len(column) == 1:
            joined.append((strange or column)[0])  # the checks name what has no axis of samples
        else:
            joined.append(concatenate(column, batch_axis))
    return joined


def names_in(raw: Any) -> list[str]:
    """Return the array names of a namedtuple, a DataBatch or a list of DataBatches; empty if it has none."""
    if isinstance(raw, tuple) and hasattr(raw, "_fields"):
        return list(raw._fields)
    part = raw[0] if isinstance(raw, (list, tuple)) and raw else raw
    if not _is_data_batch(part):
        return []
    provided = (getattr(part, name, None) or [] for name in ("provide_data", "provide_label"))
    return [description[0] for descriptions in provided for description in descriptions]


def as_numpy(value: Any) -> Any:
    """Return an array of whatever library as a NumPy array; any other value as it is."""
    if hasattr(value, "asnumpy"):  # MXNet's
        return value.asnumpy()
    if hasattr(value, "detach"):  # PyTorch's, whose bfloat16 NumPy lacks
        value = value.detach().cpu()
        return (value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy()
    if hasattr(value, "toarray"):  # SciPy's
        return value.toarray()
    return np.asarray(value) if hasattr(value, "__array__") else value


def _leaves(raw: Any) -> Iterator[Any]:
    if isinstance(raw, (list, tuple)):
        for item in raw:
            yield from _leaves(item)
    else:
        yield raw


def _is_data_batch(value: Any) -> bool:
    if hasattr(value, "shape"):
        return False  # reading the attribute `data` of some arrays raises
    return hasattr(value, "provide_data") or isinstance(getattr(value, "data", None), list)
