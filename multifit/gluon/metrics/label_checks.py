"""Count the labels that break a rule: in the step graph, or for many batches at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Collection, Hashable, Mapping, NamedTuple, Sequence

import numpy as np

from ...protocols import Array
from ...spec.names import Ref
from ..compat import mx
from ..data.arrays import new_array
from .label_rules import LabelRule, violations


class LabelChecks:
    """Counts in the step graph how many labels of a batch break each rule, on one device and without waiting.

    `constant` are the keys of the rules whose number of classes is the same in every batch. For other rules,
    it is read from the size of each batch's output.
    """

    def __init__(self, rules: Sequence[LabelRule], constant: Collection[str]) -> None:
        self._rules = list(rules)
        self._varying = {r for r in rules if r.output is not None and r.key not in constant}
        self.keys = tuple(rule.key for rule in rules)
        self.refs = {ref for rule in rules for ref in rule.refs}

    @property
    def form(self) -> Hashable:
        """What the counts depend on: the rules, without the numbers of classes that batches give."""
        return tuple(replace(rule, classes=0) if rule in self._varying else rule for rule in self._rules)

    def __call__(self, F: Any, arrays: Mapping[Ref, Any]) -> list[Any]:
        """Return float32 counts of shape (1,), in the order of `keys`; `F` is ``mx.nd`` or ``mx.sym``."""
        return [self._count(F, rule, arrays) for rule in self._rules]

    def _count(self, F: Any, rule: LabelRule, arrays: Mapping[Ref, Any]) -> Any:
        top = None
        if rule.output is not None and rule in self._varying:
            sizes = [F.size_array(arrays[ref]) for ref in (rule.output, rule.label)]
            top = F.cast(F.broadcast_div(*sizes), "float32") - 1
        return rule.count(F, arrays, top)


class LabelColumns:
    """The slice of a loss graph's statistics that holds the counts of some rules, in the order of `keys`."""

    def __init__(self, keys: tuple[str, ...], start: int) -> None:
        self.keys, self.slice = keys, slice(start, start + len(keys))

    def count(self, batches: Sequence[Sequence[Array]]) -> Array:
        """Return the counts from the statistics of batches: float64, of shape (batches, keys)."""
        return mx.nd.stack(*[statistics for (statistics,) in batches], axis=0)[:, self.slice]


class _Group(NamedTuple):
    """Rules for labels of equal shape and dtype; `last` are their last classes, of shape (1, rules, 1)."""

    rules: Sequence[LabelRule]
    last: np.ndarray | None


class LabelRows:
    """Counts labels with one value per sample, which are small enough to be kept until they are counted.

    An operator in the step graph takes as long for a few values as for many. So the labels of many batches
    are counted at once. The labels of a group have equal shapes, and rules that differ only in the number of
    classes.
    """

    def __init__(self, groups: Sequence[Sequence[LabelRule]]) -> None:
        self._groups = [_Group(rules, _last_classes(rules)) for rules in groups]
        rules = [rule for group in groups for rule in group]
        self.keys = tuple(rule.key for rule in rules)
        self.names = [rule.label.name for rule in rules]
        self.form: Hashable = tuple(map(tuple, groups))

    def count(self, batches: Sequence[Sequence[Array]]) -> Array:
        """Return the counts for the labels of batches of equal size: float64, of shape (batches, keys)."""
        counts, start = [], 0
        for rules, last in self._groups:
            end = start + len(rules)
            labels = _stack([label for batch in batches for label in batch[start:end]])
            tops = None if last is None else new_array(last, labels.context, "float32")
            counts.append(_sum_rows(labels, rules, tops))
            start = end
        return mx.nd.concat(*counts, dim=1)


def _last_classes(rules: Sequence[LabelRule]) -> np.ndarray | None:
    last = [rule.classes - 1 for rule in rules if rule.classes is not None]
    return np.array(last, "float32").reshape((1, -1, 1)) if last else None


def _stack(labels: Sequence[Array]) -> Array:
    try:
        return mx.nd.stack(*labels, axis=0)
    except mx.base.MXNetError:  # a later batch may have another dtype
        return mx.nd.stack(*[label.astype("float64") for label in labels], axis=0)


def _sum_rows(labels: Array, rules: Sequence[LabelRule], last: Array | None) -> Array:
    """Return how many values break the rules, by batch and rule; rows of `labels` go through the rules."""
    rows = labels.reshape((len(labels) // len(rules), len(rules), -1))
    wrong: Any = violations(mx.nd, rows, rules[0].classes, rules[0].ignored, last)
    return wrong.sum(axis=2).astype("float64")


def label_checks(
    rules: Sequence[LabelRule], arrays: Mapping[Ref, Any], size: int, constant: Collection[str]
) -> tuple[LabelRows | None, LabelChecks | None]:
    """Divide the rules into those checked for many batches at once and those checked in the step graph.

    Either is None if it has no rules. `arrays` are those of a batch of `size` samples on one device; for
    `constant` see :class:`LabelChecks`.
    """
    groups: dict[Any, list[LabelRule]] = {}
    others = []
    for rule in rules:
        label = arrays[rule.label]
        is_row = label.shape in ((size,), (size, 1))
        is_row = is_row and not rule.masks and not rule.kind
        if is_row and (rule.output is None or rule.key in constant):
            alike = label.shape, np.dtype(label.dtype), rule.classes is None, rule.ignored
            groups.setdefault(alike, []).append(rule)
        else:
            others.append(rule)
    rows = LabelRows(list(groups.values())) if groups else None
    return rows, LabelChecks(others, constant) if others else None
