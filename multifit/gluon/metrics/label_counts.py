"""Count the labels of an epoch that break a rule."""

from __future__ import annotations

from itertools import chain
from typing import Any, Collection, NamedTuple, Sequence, Union

from ...protocols import Array
from ..compat import mx
from ..data.arrays import new_array
from .label_checks import LabelColumns, LabelRows

BATCHES = 256  # batches that are checked in one call, which takes as long as checking a single one
ELEMENTS = 2**18  # elements that are checked in one call, unless a single batch has more
MAX_KINDS = 64  # of uncounted batches: those of ever new sizes would be kept until the epoch ends
NEVER = 2**52  # no batch has this number

Source = Union[LabelColumns, LabelRows]
Kind = tuple[Source, int, int]
"""The source of the counts, the number of samples, and the number of the device."""


class _Uncounted(NamedTuple):
    """Statistics or labels of some batches, `most` at most, and the numbers of these batches."""

    most: int
    values: list[Sequence[Array]]
    batches: list[int]


class LabelCounts:
    """Counts the labels of an epoch that break a rule, on the devices and without waiting."""

    def __init__(self) -> None:
        self._copies = False
        self.clear()

    def clear(self) -> None:
        """Forget all labels."""
        self._uncounted: dict[Kind, _Uncounted] = {}
        # by keys and device: the counts, and NEVER minus the number of the first wrong batch, 0 without one
        self._counts: dict[Any, Array] = {}
        self._ids: set[int] = set()  # of uncounted labels

    def add(
        self,
        source: Source,
        values: Sequence[Array],
        batch: int,
        size: int,
        device: int,
        reused: bool = False,
    ) -> None:
        """Add one device's statistics or labels of a batch, given its number and its number of samples.

        `reused` says whether the iterator that yielded the labels may overwrite them later.
        """
        kind = source, size, device
        uncounted = self._uncounted.get(kind)
        if uncounted is None:
            if len(self._uncounted) >= MAX_KINDS:
                self._count(next(iter(self._uncounted)))
            most = ELEMENTS // sum(array.size for array in values)
            uncounted = self._uncounted[kind] = _Uncounted(max(1, min(BATCHES, most)), [], [])
        if isinstance(source, LabelRows):
            if not self._copies and (reused or not self._ids.isdisjoint(map(id, values))):
                self._copy_uncounted({id(label) for label in values})
            if self._copies:
                values = [label.copy() for label in values]
            else:
                self._ids.update(map(id, values))
        uncounted.values.append(values)
        uncounted.batches.append(batch)
        if len(uncounted.batches) == uncounted.most:
            self._count(kind)

    def read(self) -> dict[str, tuple[int, int]]:
        """Return, by rule, the number of labels that broke it, and the first batch with one.

        Rules that no label broke are left out. This waits for the engine.
        """
        found: dict[str, tuple[int, int]] = {}
        for keys, array in self.state():
            for key, count, score in zip(keys, *array.asnumpy()):
                if count:
                    before, first = found.get(key, (0, NEVER))
                    found[key] = before + int(count), min(first, int(NEVER - score))
        return found

    def state(self) -> list[tuple[list[str], Array]]:
        """Return the counts of all labels so far, for a checkpoint."""
        for kind in list(self._uncounted):
            self._count(kind)
        return [(list(keys), array) for (keys, _), array in self._counts.items()]

    def load(self, state: Sequence[tuple[Sequence[str], Array]]) -> None:
        """Restore what :meth:`state` returned, each array on its device."""
        self.clear()
        self.merge(state)

    def merge(self, state: Sequence[tuple[Sequence[str], Array]]) -> None:
        """Add what :meth:`state` returned in another process, where batches had the same numbers."""
        for keys, array in state:
            self._add((tuple(keys), array.context), array[0], array[1])

    def _copy_uncounted(self, again: Collection[int]) -> None:
        """Copy the uncounted labels, and from now on all labels, because loaders reuse arrays.

        `again` are the identities of arrays that came again, and so were overwritten: their earlier labels
        are lost, and count as right; their present labels count once.
        """
        self._copies = True
        for (source, _, _), uncounted in self._uncounted.items():
            if isinstance(source, LabelRows):
                uncounted.values[:] = [
                    [mx.nd.zeros_like(label) if id(label) in again else label.copy() for label in labels]
                    for labels in uncounted.values
                ]

    def _count(self, kind: Kind) -> None:
        source, uncounted = kind[0], self._uncounted.pop(kind)
        self._ids.difference_update(map(id, chain.from_iterable(uncounted.values)))
        counts = source.count(uncounted.values)
        firsts = [[NEVER - batch] for batch in uncounted.batches]
        scores = new_array(firsts, counts.context, "float64")
        total, best = mx.nd.sum(counts, axis=0), mx.nd.max(mx.nd.broadcast_mul(counts != 0, scores), axis=0)
        self._add((source.keys, counts.context), total, best)

    def _add(self, where: tuple[tuple[str, ...], Any], total: Array, best: Array) -> None:
        before = self._counts.get(where)
        if before is not None:
            total, best = total + before[0], mx.nd.maximum(best, before[1])
        self._counts[where] = mx.nd.stack(total, best, axis=0)
