"""Counts labels that break a rule: the step graph hands them out, and many batches are counted at once."""

from __future__ import annotations

from typing import Any, Collection, Mapping, Sequence

import numpy as np

from ...protocols import Array, Context, Tensor
from ...spec.names import Ref
from ..compat import mx
from .base import sample_size
from .label_rules import LabelRule, violations

HELD = 256  # vectors that are counted in one call, which takes as long as one or two batches,
MAX_HELD = 2**18  # unless they have more elements than this
NEVER = 2**52  # no batch has this number


class LabelVector:
    """What is kept of one device's labels, in one float32 vector.

    Labels of one value per sample are kept as they are, as a copy is cheaper than a count in every batch. Of
    all others, the vector has the number of values that break the rule. `arrays` are those of a batch of
    `size` samples on one device. `constant` are sizes that an axis of classes has in every batch; for others,
    the size is read from each batch's output.
    """

    def __init__(
        self, rules: Sequence[LabelRule], arrays: Mapping[Ref, Any], size: int, constant: Collection[int]
    ) -> None:
        self._varying = {r for r in rules if r.output is not None and r.classes not in constant}
        dtypes = {rule.label: np.dtype(arrays[rule.label].dtype) for rule in rules}
        shapes = {rule.label: arrays[rule.label].shape for rule in rules}
        self._columns = {label for label, shape in shapes.items() if len(shape) > 1}
        groups: dict[Any, list[LabelRule]] = {}
        self._counted: list[LabelRule] = []
        for rule in rules:
            shape = shapes[rule.label]
            row = shape[:1] == (size,) and sample_size(shape) == 1
            if row and not rule.masks and rule not in self._varying and _fits(rule, dtypes[rule.label]):
                groups.setdefault((rule.classes, rule.ignored), []).append(rule)
            else:
                self._counted.append(rule)
        self._groups = list(groups.values())
        self._rows = [rule for group in self._groups for rule in group]
        self.keys = tuple(rule.key for rule in (*self._rows, *self._counted))
        self.refs = {ref for rule in rules for ref in rule.refs}

    def __call__(self, F: Any, arrays: Mapping[Ref, Any]) -> Any:
        """Return the vector, with ``mx.nd`` or ``mx.sym`` as `F`."""
        pieces = [self._row(F, rule.label, arrays[rule.label]) for rule in self._rows]
        pieces += [self._count(F, rule, arrays) for rule in self._counted]
        return F.concat(*pieces, dim=0)

    def count(self, vectors: Sequence[Array]) -> Array:
        """Return how many values broke each rule, of shape (number of vectors, number of `keys`).

        The vectors have equal sizes.
        """
        matrix = mx.nd.concat(*vectors, dim=0).reshape((len(vectors), -1))
        samples = (matrix.shape[1] - len(self._counted)) // max(1, len(self._rows))
        counts, start = [], 0
        for group in self._groups:
            end = start + len(group) * samples
            rows = mx.nd.slice_axis(matrix, axis=1, begin=start, end=end).reshape((0, len(group), samples))
            counts.append(mx.nd.sum(violations(mx.nd, rows, group[0].classes, group[0].ignored), axis=2))
            start = end
        if self._counted:
            counts.append(mx.nd.slice_axis(matrix, axis=1, begin=start, end=None))
        return mx.nd.concat(*counts, dim=1)

    def _row(self, F: Any, label: Ref, values: Any) -> Tensor:
        values = F.reshape(values, (-1,)) if label in self._columns else values
        return F.cast(values, "float32")  # another batch may have another dtype

    def _count(self, F: Any, rule: LabelRule, arrays: Mapping[Ref, Any]) -> Tensor:
        top = None
        if rule.output is not None and rule in self._varying:
            sizes = [F.size_array(arrays[ref]) for ref in (rule.output, rule.label)]
            top = F.cast(F.broadcast_div(*sizes), "float32") - 1
        return F.sum(rule.violations(F, arrays, top))


class LabelCounts:
    """The labels of an epoch that broke a rule, counted on the devices and without waiting."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all labels."""
        self._held: dict[Any, tuple[list[Array], list[int]]] = {}  # vectors of one kind, and their batches
        # per keys and device: the counts, and NEVER - the first batch with one, 0 if there is none
        self._counts: dict[Any, Array] = {}

    def add(self, labels: LabelVector, vector: Array, batch: int, context: Context, samples: int) -> None:
        """Add one device's labels of a batch, which has this number, and this number of samples there."""
        kind = labels, context, samples
        vectors, batches = self._held.setdefault(kind, ([], []))
        vectors.append(vector)
        batches.append(batch)
        if len(vectors) == HELD or len(vectors) * samples * len(labels.keys) > MAX_HELD:
            self._count(kind)

    def read(self) -> dict[str, tuple[int, int]]:
        """Return by rule how many labels broke it, and the first batch with one; this waits for the engine.

        Rules that no label broke are left out.
        """
        found: dict[str, tuple[int, int]] = {}
        for keys, array in self.state():
            for key, count, score in zip(keys, *array.asnumpy()):
                if count:
                    before, first = found.get(key, (0, NEVER))
                    found[key] = before + int(count), min(first, int(NEVER - score))
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
        labels, context, _ = kind
        vectors, batches = self._held.pop(kind)
        counts = labels.count(vectors).astype("float64")
        scores = mx.nd.array([[NEVER - batch] for batch in batches], ctx=context, dtype="float64")
        total, best = mx.nd.sum(counts, axis=0), mx.nd.max(mx.nd.broadcast_mul(counts != 0, scores), axis=0)
        self._add((labels.keys, context), total, best)

    def _add(self, where: tuple[tuple[str, ...], Any], total: Array, best: Array) -> None:
        before = self._counts.get(where)
        if before is not None:
            total, best = total + before[0], mx.nd.maximum(best, before[1])
        self._counts[where] = mx.nd.stack(total, best, axis=0)


def _fits(rule: LabelRule, dtype: np.dtype[Any]) -> bool:
    """Whether float32 shows if values break a rule."""
    return rule.classes is not None or dtype != "float64"
