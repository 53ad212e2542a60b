"""Counts labels that break a rule: in the step graph of every batch, and over an epoch."""

from __future__ import annotations

from typing import Any, Collection, Mapping, Sequence

import numpy as np

from ...protocols import Array, Context, Tensor
from ...spec.names import Ref
from ..compat import mx
from .base import sample_size
from .label_rules import LabelRule, violations

HELD = 256  # statistics of batches that are looked through in one call, which takes as long as a batch,
MAX_HELD = 2**18  # unless they have more elements than this
NEVER = 2**52  # no batch has this number


class LabelChecks:
    """Counts how many labels of a batch break each rule, on one device, and without waiting.

    `arrays` are those of a batch of `size` samples on one device. `constant` are sizes that an axis of
    classes has in every batch; for others, the size is read from each batch's output. Equal rules for labels
    of one value per sample are counted in one call.
    """

    def __init__(
        self, rules: Sequence[LabelRule], arrays: Mapping[Ref, Any], size: int, constant: Collection[int]
    ) -> None:
        self._varying = {r for r in rules if r.output is not None and r.classes not in constant}
        groups: dict[Any, list[LabelRule]] = {}
        for rule in rules:
            label = arrays[rule.label]
            is_row = label.shape[:1] == (size,) and sample_size(label.shape) == 1
            # float32 shows a wrong class; whether float64 is finite, it does not
            fits = rule.classes is not None or np.dtype(label.dtype) != "float64"
            joined = is_row and fits and not rule.masks and rule not in self._varying
            kind: Any = (label.shape, rule.classes, rule.ignored) if joined else rule
            groups.setdefault(kind, []).append(rule)
        self._groups = list(groups.values())
        self.keys = tuple(rule.key for group in self._groups for rule in group)
        self.refs = {ref for rule in rules for ref in rule.refs}

    def __call__(self, F: Any, arrays: Mapping[Ref, Any]) -> list[Any]:
        """Return float32 vectors of the counts, in the order of `keys`; `F` is ``mx.nd`` or ``mx.sym``."""
        return [
            self._count(F, group[0], arrays) if len(group) == 1 else self._count_rows(F, group, arrays)
            for group in self._groups
        ]

    def _count(self, F: Any, rule: LabelRule, arrays: Mapping[Ref, Any]) -> Tensor:
        top = None
        if rule.output is not None and rule in self._varying:
            sizes = [F.size_array(arrays[ref]) for ref in (rule.output, rule.label)]
            top = F.cast(F.broadcast_div(*sizes), "float32") - 1
        return F.sum(rule.violations(F, arrays, top))

    def _count_rows(self, F: Any, group: Sequence[LabelRule], arrays: Mapping[Ref, Any]) -> Tensor:
        # another batch may have other dtypes
        rows = F.stack(*(F.cast(arrays[rule.label], "float32") for rule in group), axis=0)
        return F.sum(violations(F, rows, group[0].classes, group[0].ignored), axis=0, exclude=True)


class LabelColumns:
    """Where a loss graph's statistics have the counts of some rules: a slice, in the order of `keys`.

    `width` is the length of the statistics, of which `most` are held at a time.
    """

    def __init__(self, keys: tuple[str, ...], start: int, width: int) -> None:
        self.keys, self.slice = keys, slice(start, start + len(keys))
        self.most = max(1, min(HELD, MAX_HELD // width))

    def of(self, vectors: Sequence[Array]) -> Array:
        """Return the counts in statistics of equal length, of shape (number of vectors, number of keys)."""
        matrix = mx.nd.concat(*vectors, dim=0).reshape((len(vectors), -1))
        return matrix[:, self.slice]


class LabelCounts:
    """The labels of an epoch that broke a rule, counted on the devices and without waiting."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all labels."""
        self._held: dict[Any, tuple[list[Array], list[int]]] = {}  # vectors of one kind, and their batches
        # per keys and device: the counts, and NEVER - the first batch with one, 0 if there is none
        self._counts: dict[Any, Array] = {}

    def add(self, columns: LabelColumns, statistics: Array, batch: int, context: Context) -> None:
        """Add one device's statistics of a batch, which has this number."""
        kind = columns, context
        vectors, batches = self._held.setdefault(kind, ([], []))
        vectors.append(statistics)
        batches.append(batch)
        if len(vectors) == columns.most:
            self._count(kind)

    def read(self) -> dict[str, tuple[int, int]]:
        """Return by rule how many labels broke it, and the first batch with one; this waits for the engine.

        Rules that no label broke are left out.
        """
        found: dict[str, tuple[int, int]] = {}
        for (keys, _), array in self._counts.items():
            for key, count, score in zip(keys, *array.asnumpy()):
                _note(found, key, int(count), int(NEVER - score))
        for (columns, _), (vectors, batches) in self._held.items():
            counts = columns.of(vectors).asnumpy()
            for key, column in zip(columns.keys, counts.T):
                _note(found, key, int(column.sum()), batches[int((column != 0).argmax())])
        return found

    def state(self) -> list[tuple[list[str], Array]]:
        """Return the counts, for a checkpoint."""
        for kind in list(self._held):
            self._count(kind)
        return [(list(keys), array) for (keys, _), array in self._counts.items()]

    def load(self, state: Sequence[tuple[Sequence[str], Array]]) -> None:
        """Restore what :meth:`state` returned, each array on its device."""
        self.clear()
        self._counts = {(tuple(keys), array.context): array.copy() for keys, array in state}

    def merge(self, state: Sequence[tuple[Sequence[str], Array]]) -> None:
        """Add what :meth:`state` returned elsewhere, where batches had the same numbers."""
        for keys, array in state:
            self._add((tuple(keys), array.context), array[0], array[1])

    def _count(self, kind: Any) -> None:
        columns, context = kind
        vectors, batches = self._held.pop(kind)
        counts = columns.of(vectors)
        scores = mx.nd.array([[NEVER - batch] for batch in batches], ctx=context, dtype="float64")
        total, best = mx.nd.sum(counts, axis=0), mx.nd.max(mx.nd.broadcast_mul(counts != 0, scores), axis=0)
        self._add((columns.keys, context), total, best)

    def _add(self, where: tuple[tuple[str, ...], Any], total: Array, best: Array) -> None:
        before = self._counts.get(where)
        if before is not None:
            total, best = total + before[0], mx.nd.maximum(best, before[1])
        self._counts[where] = mx.nd.stack(total, best, axis=0)


def _note(found: dict[str, tuple[int, int]], key: str, count: int, first: int) -> None:
    if count:
        before, earliest = found.get(key, (0, NEVER))
        found[key] = before + count, min(earliest, first)
