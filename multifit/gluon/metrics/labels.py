"""Which labels are valid, and how many of a pass are not."""

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from ...checks import LENGTH, RESHAPED, mask_kind
from ...protocols import Array, Tensor
from ...spec import TaskSpec
from ...spec.names import LABELS, OUTPUTS, Ref
from ...spec.terms import Term
from ..compat import mx
from ..data.arrays import new_array
from ..losses import class_axis


@dataclass(frozen=True)
class LabelRule:
    """A rule for the values of one label or, without `classes`, of any slot.

    With `classes`, the number of classes, they must be class indices; without, finite numbers. Values that
    equal one of `ignored` are not checked, nor are values that one of `masks` hides: where a weight is 0, or
    past a sequence's length. Each mask comes with the way it is applied. `output` is the loss's output, whose
    class axis may have a different size in another batch; None if the number of classes is declared. With
    `in_part`, the label is 1 where another label is present, and must be so for all values of a sample or for
    none: those that are missing beside others are counted. `kind` is "csr" or "float16" for such arrays,
    whose numbers are summed in another way.
    """

    where: str
    label: Ref
    classes: int | None = None
    output: Ref | None = None
    ignored: tuple[float, ...] = ()
    masks: tuple[tuple[Ref, str], ...] = ()
    in_part: bool = False
    kind: str = ""

    @property
    def key(self) -> str:
        """The rule's name in a checkpoint."""
        return f"{self.where}: {self.label}"

    @property
    def refs(self) -> set[Ref]:
        """All arrays that the rule reads."""
        return {self.label, *(ref for ref, _ in self.masks), *([self.output] if self.output else [])}

    def count(self, F: ModuleType, arrays: Mapping[Ref, Any], top: Tensor | None = None) -> Any:
        """Return how many values of the label break the rule, of shape (1,); `top` as in `violations`.

        Of numbers that are not finite, the rows that hold one are counted, where a row is an element of the
        first axis: a dense layer whose weights are 0 finds them in a tenth of the time of MXNet's sum.
        """
        if self.classes is not None or self.in_part:
            return F.sum(self.violations(F, arrays, top))
        values = arrays[self.label]
        if self.kind == "csr":
            sums = F.sum(values * 0, axis=1)
        else:
            values = F.cast(values, "float32") if self.kind else values
            weights = F.reshape(F.zeros_like(F.slice_axis(values, axis=0, begin=0, end=1)), shape=(1, -1))
            sums = F.FullyConnected(values, weights, num_hidden=1, no_bias=True)
        return F.sum(sums != 0)  # 0 times NaN or infinity is NaN

    def violations(self, F: ModuleType, arrays: Mapping[Ref, Any], top: Tensor | None = None) -> Any:
        """Return 1 for each value of the label that breaks the rule, else 0; of the label's shape.

        `top` is the last class, of shape (1,), if it is read from each batch.
        """
        if self.in_part:
            return missing_in_part(F, arrays[self.label])
        wrong = violations(F, arrays[self.label], self.classes, self.ignored, top)
        for ref, how in self.masks:
            if how == LENGTH:
                wrong = F.SequenceMask(wrong, arrays[ref], use_sequence_length=True, value=0, axis=1)
            else:
                weighted = F.cast(arrays[ref], "float32") != 0
                weighted = F.reshape_like(weighted, wrong) if how == RESHAPED else weighted
                wrong = F.broadcast_mul(wrong, weighted)
        return wrong


def violations(
    F: ModuleType, values: Tensor, classes: int | None, ignored: Sequence[float], top: Tensor | None = None
) -> Tensor:
    """Return 1 for values that are wrong and not ignored, else 0, as float32.

    Values are wrong if they are not one of the `classes` or, if that is None, not finite.
    """
    if classes is None:
        return F.cast(values * 0 != 0, "float32")  # NaN for NaN and for infinity
    values = F.cast(values, "float32")
    if top is not None:
        inside = F.relu(F.broadcast_minimum(F.trunc(values), top))
        wrong = F.broadcast_not_equal(inside, values)
    else:
        wrong = F.broadcast_not_equal(F.clip(F.trunc(values), a_min=0, a_max=classes - 1), values)
    for value in ignored:
        wrong = wrong * (values != value)
    return wrong


def missing_in_part(F: ModuleType, present: Any) -> Any:
    """Return 1 for each value that is missing in a sample that has others, else 0; of shape (N, values)."""
    present = F.reshape(present, (0, -1))
    return F.broadcast_mul(1 - present, F.max(present, axis=1, keepdims=True))


def count_in_part(present: Array) -> int:
    """Return how many values :func:`missing_in_part` finds; this waits for the engine."""
    return int(missing_in_part(mx.nd, present).sum().asscalar())


def label_rules(spec: TaskSpec, arrays: Mapping[Ref, Any]) -> list[LabelRule]:
    """Return the rules for a stage's slots, from one device's outputs and slots."""
    terms = [term for term in spec.terms if term.has_slots(arrays)]
    rules = [*_declared(spec, arrays), *(rule for term in terms for rule in _taken(spec, term, arrays))]
    different = {(r.label, r.classes, r.ignored, r.masks): r for r in reversed(rules)}
    rules = list(reversed(different.values()))
    return [*rules, *_finite(spec, arrays, {rule.label for rule in rules})]


def _finite(spec: TaskSpec, arrays: Mapping[Ref, Any], classes: Collection[Ref]) -> Iterator[LabelRule]:
    """Yield the rules that inputs, and labels that are taken, except class indices, must be finite.

    The sums of normalizers are checked elsewhere.
    """
    taken = {ref for taker in spec.takers for ref in taker.refs}
    taken |= {Ref(LABELS, term.spec.sample_weight) for term in spec.terms if term.spec.sample_weight}
    for name in spec.slot_names:
        ref, where = Ref(LABELS, name), "inputs" if name in spec.inputs else "labels"
        array = arrays.get(ref)
        if ref in classes or name in spec.state or (where == "labels" and ref not in taken):
            continue
        if array is not None and np.dtype(array.dtype).kind == "f":
            special = {array.stype, np.dtype(array.dtype).name} & {"csr", "float16"}
            yield LabelRule(f'{where}["{name}"]', ref, kind=min(special, default=""))


def _declared(spec: TaskSpec, arrays: Mapping[Ref, Any]) -> Iterator[LabelRule]:
    for name, label in spec.label_specs.items():
        ref = Ref(LABELS, name)
        if label.classes is not None and _is_dense(arrays.get(ref)):
            ignored = () if label.ignore is None else (label.ignore,)
            yield LabelRule(f'labels["{name}"]', ref, label.classes, ignored=ignored)


def _taken(spec: TaskSpec, term: Term, arrays: Mapping[Ref, Any]) -> Iterator[LabelRule]:
    outputs, slots = ([ref for ref in term.args if ref.space == space] for space in (OUTPUTS, LABELS))
    if not outputs or not slots or not all(_is_dense(arrays.get(ref)) for ref in (outputs[0], slots[0])):
        return
    label, *others = slots
    axis, out = class_axis(term.spec.fn), arrays[outputs[0]]
    classes = None
    if axis is not None and -len(out.shape) <= axis < len(out.shape):
        classes = out.shape[axis]
    elif axis is None and isinstance(term.spec.class_weights, tuple):
        classes = len(term.spec.class_weights)
    if classes is not None:
        others += [term.weights] if term.weights and term.spec.sample_weight is not None else []
        present = [ref for ref in others if arrays.get(ref) is not None]
        masks = [(ref, mask_kind(arrays[ref], arrays[label])) for ref in present]
        hiding = tuple((ref, how) for ref, how in masks if how)
        ignored = tuple(_ignored(spec, term, label.name))
        yield LabelRule(term.where, label, classes, None if axis is None else outputs[0], ignored, hiding)


def _is_dense(array: Array | None) -> bool:
    return getattr(array, "stype", None) == "default"


def _ignored(spec: TaskSpec, term: Term, name: str) -> list[float]:
    """Return the values that mean "no label".

    That is the value that the loss ignores. A value that only the LabelSpec declares counts if the loss also
    takes a mask.
    """
    by_loss, label = getattr(term.spec.fn, "_ignore_label", None), spec.label_specs.get(name)
    takes_mask = len(term.args) > 2 or term.spec.sample_weight is not None
    declared = label.ignore if takes_mask and label is not None else None
    return [value for value in (by_loss, declared) if value is not None]


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


BATCHES = 256  # batches that are checked in one call, which takes as long as checking a single one
ELEMENTS = 2**18  # elements that are checked in one call, unless a single batch has more
MAX_KINDS = 64  # of uncounted batches: those of ever new sizes would be kept until the epoch ends
NEVER = 2**52  # no batch has this number

Source = LabelColumns | LabelRows
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
