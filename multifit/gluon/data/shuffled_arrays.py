"""Draw the order of each pass over an NDArrayIter from NumPy's random state alone, as a DataLoader does.

An NDArrayIter with ``shuffle=True`` shuffles as soon as it is made, before a run has seeded anything, and
each reset shuffles the order of the previous pass. A run that is resumed in a new process could not draw the
same order again: it would repeat some samples, and leave others out.
"""

from __future__ import annotations

from typing import Any, Iterable

import numpy as np

from ..compat import mx


def reset_shuffled(data: Any, sources: Iterable[Any]) -> None:
    """Reset an iterator; NDArrayIters among its `sources` shuffle from the original order of their arrays."""
    shuffled = [source for source in sources if _shuffles(source)]
    if shuffled:
        _wait_for_threads(data)
    for source in shuffled:
        _unshuffle(source)
    data.reset()
    for source in shuffled:
        source.data_list = _arrays(source)


def _shuffles(source: Any) -> bool:
    """Whether an iterator is an NDArrayIter that shuffles at each reset; subclasses may shuffle otherwise."""
    usual = mx.io.NDArrayIter
    return (
        isinstance(source, usual)
        and source.shuffle
        and all(getattr(type(source), name) is getattr(usual, name) for name in ("reset", "_shuffle_data"))
    )


def _unshuffle(source: Any) -> None:
    """Undo the last shuffle of an NDArrayIter, unless other code has reset the iterator since.

    `data_list` shows that: it holds the arrays of the last shuffle made here. MXNet fills it when the
    iterator is made, and never reads it.
    """
    if all(array is last for array, last in zip(_arrays(source), source.data_list)):
        rows = np.argsort(source.idx)
        source.data, source.label = (
            mx.io.io._getdata_by_idx(part, rows) for part in (source.data, source.label)
        )
        source.idx.sort()


def _arrays(source: Any) -> list[Any]:
    return [array for _, array in (*source.data, *source.label)]


def _wait_for_threads(data: Any) -> None:
    """Wait until no thread of a PrefetchingIter is reading."""
    if isinstance(data, mx.io.PrefetchingIter):
        for ready in data.data_ready:
            ready.wait()
        for inner in data.iters:
            _wait_for_threads(inner)
