"""Batches: the arrays in what a loader yields, and how they are divided among processes and devices."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass
class Batch:
    """A batch of named arrays on the devices of this process.

    `raw` is what the loader yielded. `samples` is this process's number of samples; `total` is that of all
    processes that train together, None until it has been summed. The samples lie along `axis`. `absent` names
    the slots that the batch lacks; their arrays are None.
    """

    raw: object
    samples: int
    axis: int = 0
    total: int | None = None
    absent: frozenset[str] = frozenset()


# ---------------------------------------------------------------------------------------------- raw batches


def sliced(array: Any, rows: slice, axis: int) -> Any:
    """Return some samples of an array."""
    return array[(slice(None),) * axis + (rows,)]


def arrays_in(
    raw: Any,
    batch_axis: int,
    as_array: Callable[[Any], Any],
    samples: Callable[[Any, slice, int], Any] = sliced,
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


# --------------------------------------------------------------------------------------------------- shares


class Shards(list[Any]):
    """A batch that is split already: a list of parts, one for each device or fewer, each a batch by itself.

    A loader may yield it, a `batchify_fn` return it, or a `batch_fn` make it. If batches are lists of parts,
    as gluonnlp's ShardedDataLoader yields them, use ``batch_fn=Shards``. If they hold, for each slot, a list
    with an array per device, use ``batch_fn=lambda batch: Shards(zip(*batch))``. Training on the parts gives
    the same numbers as on the whole batch, even if their sizes differ. Not to be confused with
    :class:`multifit.Sharded`, which wraps a loader that holds one process's part of the data.
    """


def shares(samples: int, devices: int) -> list[int]:
    """Split a number of samples over devices as evenly as possible; the first ones take what is left over.

    >>> shares(7, 2)
    [4, 3]
    >>> shares(1, 2)
    [1, 0]
    """
    each, rest = divmod(samples, devices)
    return [each + (i < rest) for i in range(devices)]


@dataclass(frozen=True)
class Slice:
    """A share of a batch that every process has read as a whole: each takes a slice, as devices do.

    `rank` is the number of this process, and `ranks` is the number of processes.
    """

    rank: int = 0
    ranks: int = 1

    def cut(self, samples: int, devices: int) -> tuple[int, list[int]]:
        """Return the first sample of this process, and the number of samples for each of its devices.

        Samples are split over processes before devices, so that as many processes as possible get one.

        >>> Slice(1, 2).cut(7, devices=2)
        (4, [2, 1])
        """
        sizes = shares(samples, self.ranks)
        return sum(sizes[: self.rank]), shares(sizes[self.rank], devices)

    def total(self, samples: int) -> int | None:
        """Return the number of samples of the whole batch."""
        return samples


@dataclass(frozen=True)
class ReadShare(Slice):
    """A share of a batch of which each process has read its share only: the process takes all of that.

    `whole` is the number of samples of the whole batch; None if it is known only after summing over the
    processes.
    """

    whole: int | None = None

    def total(self, samples: int) -> int | None:
        """Return the number of samples of the whole batch, if it is known."""
        return self.whole


WHOLE = Slice()


@dataclass
class CurrentShare:
    """The share of the batch that was read last: set where batches are read, used where they are split."""

    share: Slice = WHOLE
