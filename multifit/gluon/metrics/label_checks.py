"""Counts labels that break a rule: in the step graph, or in the labels of many batches at once."""

from __future__ import annotations

from itertools import accumulate
from typing import Any, Collection, Mapping, Sequence

from ...protocols import Array, Tensor
from ...spec.names import Ref
from ..compat import mx
from .base import sample_size
from .label_rules import LabelRule, violations

HELD = 256  # batches that are looked through in one call, which takes as long as a batch,
MAX_HELD = 2**18  # unless they have more elements than this


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

    def _count(self, F: Any, rule: LabelRule, arrays: Mapping[Ref, Any]) -> Tensor:
        top = None
        if rule.output is not None and rule in self._varying:
            sizes = [F.size_array(arrays[ref]) for ref in (rule.output, rule.label)]
            top = F.cast(F.broadcast_div(*sizes), "float32") - 1
        return F.sum(rule.violations(F, arrays, top))


class LabelColumns:
    """Where a loss graph's statistics, of length `width`, have the counts of some rules: a slice.

    The counts are in the order of `keys`.
    """

    def __init__(self, keys: tuple[str, ...], start: int, width: int) -> None:
        self.keys, self.slice = keys, slice(start, start + len(keys))
        self._width = width

    def most(self, size: int) -> int:
        """Return how many batches are held."""
        return max(1, min(HELD, MAX_HELD // self._width))

    def count(self, held: Sequence[Array]) -> Array:
        """Return the counts in statistics of equal length: float64, of shape (batches, keys)."""
        return mx.nd.concat(*held, dim=0).reshape((len(held), -1))[:, self.slice]


class LabelRows:
    """Labels of one value per sample, which are small enough to be held until they are counted.

    An operator in the step graph takes as long for a few values as for many: the labels of many batches are
    counted at once. The labels of a group have equal shapes, and the same rule.
    """

    def __init__(self, groups: Sequence[Sequence[LabelRule]]) -> None:
        rules = [rule for group in groups for rule in group]
        self.keys = tuple(rule.key for rule in rules)
        self.names = [rule.label.name for rule in rules]
        self._rules, self._sizes = rules, [len(group) for group in groups]
        counts = [_sum_rows(mx.sym, mx.sym.var(f"labels{i}"), group) for i, group in enumerate(groups)]
        self._count = mx.nd.CachedOp(mx.sym.concat(*counts, dim=1))

    def most(self, size: int) -> int:
        """Return how many batches of so many samples are held."""
        return max(1, min(HELD, MAX_HELD // (size * len(self.keys))))

    def count(self, held: Sequence[Sequence[Array]]) -> Array:
        """Return the counts in the labels of batches of equal size: float64, of shape (batches, keys)."""
        ends = list(accumulate(self._sizes, initial=0))
        groups = [[a for batch in held for a in batch[i:end]] for i, end in zip(ends, ends[1:])]
        try:
            return self._count(*[mx.nd.stack(*group, axis=0) for group in groups])
        except mx.base.MXNetError:  # a later batch may have other dtypes
            counts = [
                _sum_rows(mx.nd, mx.nd.expand_dims(label, axis=0), [rule])
                for batch in held
                for label, rule in zip(batch, self._rules)
            ]
            return mx.nd.concat(*counts, dim=0).reshape((len(held), -1))


def _sum_rows(F: Any, labels: Tensor, group: Sequence[LabelRule]) -> Tensor:
    """Return how many values break the rule of a group, by batch and label, which take turns in `labels`."""
    wrong = violations(F, labels, group[0].classes, group[0].ignored)
    return F.reshape(F.cast(F.sum(wrong, axis=0, exclude=True), "float64"), shape=(-1, len(group)))


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
