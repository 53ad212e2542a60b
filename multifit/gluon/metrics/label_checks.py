"""Counts labels that break a rule: in the step graph, or in the labels of many batches at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Collection, Iterator, Mapping, Sequence

import numpy as np

from ...protocols import Array
from ...spec.names import Ref
from ..compat import mx
from .base import sample_size
from .label_rules import LabelRule, violations

HOST = SimpleNamespace(cast=np.ndarray.astype, trunc=np.trunc, clip=np.clip, broadcast_not_equal=np.not_equal)
"""What rules call, for NumPy's arrays."""


class LabelChecks:
    """Counts in the step graph how many labels of a batch break each rule, on one device and without waiting.

    `constant` are sizes that an axis of classes has in every batch; for others, the size is read from each
    batch's output.
    """

    def __init__(self, rules: Sequence[LabelRule], constant: Collection[int]) -> None:
        self._rules = list(rules)
        self._varying = {r for r in rules if r.output is not None and r.classes not in constant}
        self.keys = tuple(rule.key for rule in rules)
        self.refs = {ref for rule in rules for ref in rule.refs}

    def __call__(self, F: Any, arrays: Mapping[Ref, Any]) -> list[Any]:
        """Return float32 counts of shape (1,), in the order of `keys`; `F` is ``mx.nd`` or ``mx.sym``."""
        return [self._count(F, rule, arrays) for rule in self._rules]

    def _count(self, F: Any, rule: LabelRule, arrays: Mapping[Ref, Any]) -> Any:
        top = None
        if rule.output is not None and rule in self._varying:
            sizes = [F.size_array(arrays[ref]) for ref in (rule.output, rule.label)]
            top = F.cast(F.broadcast_div(*sizes), "float32") - 1
        return F.sum(rule.violations(F, arrays, top))


class LabelColumns:
    """Where a loss graph's statistics have the counts of some rules: a slice, in the order of `keys`."""

    def __init__(self, keys: tuple[str, ...], start: int) -> None:
        self.keys, self.slice = keys, slice(start, start + len(keys))

    def count(self, held: Sequence[Sequence[Array]]) -> Array:
        """Return the counts in statistics of equal length: float64, of shape (batches, keys)."""
        return mx.nd.stack(*[statistics for (statistics,) in held], axis=0)[:, self.slice]

    def read(self, held: Sequence[Sequence[Array]]) -> np.ndarray:
        """Return the counts, as :meth:`count` does, on the host; this waits for the engine."""
        return self.count(held).asnumpy()


class LabelRows:
    """Labels of one value per sample, which are small enough to be held until they are counted.

    An operator in the step graph takes as long for a few values as for many: the labels of many batches are
    counted at once. The labels of a group have equal shapes, and the same rule.
    """

    def __init__(self, groups: Sequence[Sequence[LabelRule]]) -> None:
        self._groups = groups
        rules = [rule for group in groups for rule in group]
        self.keys = tuple(rule.key for rule in rules)
        self.names = [rule.label.name for rule in rules]

    def count(self, held: Sequence[Sequence[Array]]) -> Array:
        """Return the counts in the labels of batches of equal size: float64, of shape (batches, keys)."""
        counts = [_sum_rows(mx.nd, labels, group) for group, labels in self._stacked(held)]
        return mx.nd.concat(*counts, dim=1)

    def read(self, held: Sequence[Sequence[Array]]) -> np.ndarray:
        """Return the counts on the host, where NumPy takes less time for them; this waits for the engine."""
        with np.errstate(invalid="ignore"):  # labels that are not finite
            counts = [_sum_rows(HOST, labels.asnumpy(), group) for group, labels in self._stacked(held)]
        return np.concatenate(counts, axis=1)

    def _stacked(self, held: Sequence[Sequence[Array]]) -> Iterator[tuple[Sequence[LabelRule], Array]]:
        """Return each group with its labels, of one batch after the other, as one array."""
        start = 0
        for group in self._groups:
            end = start + len(group)
            labels = [label for batch in held for label in batch[start:end]]
            yield group, _stack(labels)
            start = end


def _stack(labels: Sequence[Array]) -> Array:
    try:
        return mx.nd.stack(*labels, axis=0)
    except mx.base.MXNetError:  # a later batch may have another dtype
        return mx.nd.stack(*[label.astype("float64") for label in labels], axis=0)


def _sum_rows(F: Any, labels: Any, group: Sequence[LabelRule]) -> Any:
    """Return how many values break the rule of a group, by batch and label, which take turns in `labels`."""
    wrong: Any = violations(F, labels, group[0].classes, group[0].ignored)
    return wrong.reshape((len(labels), -1)).sum(axis=1).astype("float64").reshape((-1, len(group)))


def label_checks(
    rules: Sequence[LabelRule], arrays: Mapping[Ref, Any], size: int, constant: Collection[int]
) -> tuple[LabelRows | None, LabelChecks | None]:
    """Return what holds labels to the rules, and what does so in the step graph; None for no rule.

    `arrays` are those of a batch of `size` samples on one device; for `constant` see :class:`LabelChecks`.
    """
    groups: dict[Any, list[LabelRule]] = {}
    others = []
    for rule in rules:
        shape = arrays[rule.label].shape
        is_row = shape[:1] == (size,) and sample_size(shape) == 1
        if is_row and not rule.masks and (rule.output is None or rule.classes in constant):
            groups.setdefault((shape, rule.classes, rule.ignored), []).append(rule)
        else:
            others.append(rule)
    rows = LabelRows(list(groups.values())) if groups else None
    return rows, LabelChecks(others, constant) if others else None
