"""Read MXNet's DataIters so that every pass yields each sample once.

MXNet's C++ iterators fill the last batch of a pass with the first rows of the next one (``round_batch``, the
default), and leave these rows out of the next pass. A reset does not undo that, and the threads that read
ahead may be at the end of a small data set before its first batch is taken. ``ImageRecordIter`` also reports
padding for later batches that reuse the memory of a padded one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import Any, Iterator
from weakref import WeakKeyDictionary

from ..compat import mx
from .shuffled_arrays import reset_shuffled

MANY = 24  # batches; MXNet's iterators read up to 16 ahead


@dataclass
class _Pass:
    """The current pass of an iterator that may wrap.

    If the iterator wraps, `left_out` is a DataBatch of the rows that this pass leaves out, and `padding` one
    of the rows that fill its last batch. `samples` is the number of samples in a whole pass, if it is known.
    """

    from_start: bool
    samples: int | None = None
    is_long: bool = False
    batches: int = 0
    last: Any = None
    finished: bool = False
    left_out: Any = None
    padding: Any = None

    def begin_again(self) -> None:
        """Forget the batches of a finished pass, but not what all passes have in common."""
        self.from_start, self.batches, self.finished = False, 0, False
        self.last = self.left_out = self.padding = None

    def add(self, batch: Any) -> None:
        """Count a batch that was read."""
        self.batches += 1
        self.is_long = self.is_long or self.batches >= MANY
        self.last = batch

    def finish(self, batch_size: int) -> None:
        """Find out whether the pass left rows out, and how many rows of its last batch are padding."""
        offset, pad = 0 if self.left_out is None else len(self.left_out.data[0]), self.last.pad
        if self.from_start and not offset:
            self.samples = self.batches * batch_size - pad
        if offset:
            # The padding of an iterator that does not wrap is the same in each pass.
            batches = None if self.samples is None else -(-self.samples // batch_size)
            if pad == offset and batches in (None, self.batches):
                self.left_out = None
            elif self.samples is not None:
                pad = (offset - self.samples) % batch_size
        self.last.pad, self.padding, self.finished = pad, _last_rows(self.last, pad), True


_passes: WeakKeyDictionary[Any, _Pass] = WeakKeyDictionary()
_resized: WeakKeyDictionary[Any, Iterator[Any]] = WeakKeyDictionary()  # of ResizeIters that never rewind


def is_resettable(data: Any) -> bool:
    """Whether a loader is an iterator that starts again when it is reset."""
    return callable(getattr(data, "reset", None))


def read_pass(data: Any) -> Iterator[Any]:
    """Yield an iterator's batches from its start, each sample once, with the names of their arrays."""
    provided = [getattr(data, name, None) for name in ("provide_data", "provide_label")]
    for batch in _read_pass(data):
        for part in batch if isinstance(batch, list) else [batch]:
            if isinstance(part, mx.io.DataBatch) and part.provide_data is None:
                part.provide_data, part.provide_label = provided
        yield batch


def _read_pass(data: Any) -> Iterator[Any]:
    if isinstance(data, mx.io.ResizeIter):
        yield from _resize(data)
        return
    rewind(data)
    if _may_wrap(data):
        current = _passes[data]
        yield from _read_on(data, current)
        if current.left_out is not None and not current.is_long:
            yield current.left_out
        return
    for batch in data:
        if _rolls_over(data):
            batch.pad = 0  # NDArrayIter counts the first rows of the new pass as padding
        yield batch


def rewind(data: Any) -> None:
    """Begin the next pass of an iterator.

    An iterator that may wrap is first read to its end, to find out which rows the next pass leaves out. If it
    has many batches, it is reset twice instead: its threads cannot reach the end between the two resets, so
    that the second one rewinds it.
    """
    if not _may_wrap(data):
        reset_shuffled(data, _sources(data))
        return
    if getattr(data, "first_batch", None) is not None:  # it is at its start
        _passes[data] = _Pass(from_start=True)
        return
    before = _finished_pass(data)
    data.reset()
    if before.is_long:
        data.reset()
    left_out = None if before.is_long else before.padding
    _passes[data] = _Pass(True, before.samples, before.is_long, left_out=left_out)


def replay_pass(data: Any) -> None:
    """Move an iterator to where it is after another pass, reading no more batches than necessary."""
    if isinstance(data, mx.io.ResizeIter):
        for _ in _resize(data):
            if data.reset_internal and not _goes_on(data.data_iter):
                break
        return
    rewind(data)
    if _may_wrap(data):
        _finished_pass(data)
    elif _rolls_over(data):
        deque(data, maxlen=0)


def _finished_pass(data: Any) -> _Pass:
    """Return an iterator's pass, read to its end or until it is known to be long."""
    current = _passes.setdefault(data, _Pass(from_start=False))
    if not current.is_long:
        _read_to_end(data, current)
    if not (current.is_long or current.finished):  # other code has read it to its end
        data.reset()
        _read_to_end(data, current)
    return current


def _read_to_end(data: Any, current: _Pass) -> None:
    for _ in _read_on(data, current):
        if current.is_long:
            break


def _read_on(data: Any, current: _Pass) -> Iterator[Any]:
    """Yield the rest of a pass; only its last batch has padding."""
    padded = None
    for batch in data:
        if current.finished:  # another pass has begun meanwhile
            current.begin_again()
        if padded is not None:
            padded.pad = 0
            yield padded
        padded = _copy(batch) if batch.pad else None  # the iterator reuses the memory
        current.add(padded or batch)
        if padded is None:
            yield batch
    if current.last is not None and not current.finished:
        current.finish(data.batch_size)
    if padded is not None:
        yield padded


def _copy(batch: Any) -> Any:
    data, label = ([array.copy() for array in part] for part in (batch.data, batch.label))
    return mx.io.DataBatch(data, label, batch.pad, batch.index)


def _last_rows(batch: Any, count: int) -> Any:
    """Return the last rows of a batch as a DataBatch; None for none."""
    if not count:
        return None
    data, label = ([a[len(a) - count : len(a)] for a in part] for part in (batch.data, batch.label))
    return mx.io.DataBatch(data, label, pad=0)


def _sources(data: Any) -> list[Any]:
    """Return the iterators that an iterator reads, or itself."""
    if isinstance(data, mx.io.PrefetchingIter):
        return [source for inner in data.iters for source in _sources(inner)]
    return [data]


def _may_wrap(data: Any) -> bool:
    return any(isinstance(source, mx.io.MXDataIter) for source in _sources(data))


def _rolls_over(data: Any) -> bool:
    return any(getattr(source, "last_batch_handle", "") == "roll_over" for source in _sources(data))


def _goes_on(data: Any) -> bool:
    """Whether the next pass over an iterator that is being read depends on where this one ends."""
    return _rolls_over(data) or (_may_wrap(data) and not _passes[data].is_long)


def _resize(data: Any) -> Iterator[Any]:
    """Yield a ResizeIter's number of batches from passes over its iterator."""
    batches = _resized.get(data)
    if batches is None or data.reset_internal:
        batches = _resized[data] = _endless(data.data_iter)
    yield from islice(batches, data.size)


def _endless(data: Any) -> Iterator[Any]:
    while True:
        yield from read_pass(data)
