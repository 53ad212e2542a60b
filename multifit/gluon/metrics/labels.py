"""Which labels are valid, and how many of a batch are not."""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np

from ...engines import labels
from ...engines.labels import declared_classes, finite_slots, once
from ...spec import TaskSpec
from ...spec.checks.values import LENGTH, RESHAPED, mask_kind
from ...spec.terms import LABELS, OUTPUTS, Ref, Term
from ...utils.protocols import Array
from ..compat import mx
from ..losses import class_axis


@dataclass(frozen=True)
class LabelRule(labels.LabelRule):
    """A rule for the values of one slot, as arrays or symbols.

    `classes` is the number of classes in the first batch. `output` is the loss's output, along whose `axis`
    each batch has its classes; None if their number is declared. Values are not checked either that one of
    `masks` hides: where a weight is 0, or past a sequence's length. Each mask comes with the way it is
    applied. `is_row` says whether there is one value per sample, and none is hidden. `stored` is how the
    output or else the slot is stored: "csr", or its dtype.
    """

    output: Ref | None = None
    axis: int = 1
    masks: tuple[tuple[Ref, str], ...] = ()
    is_row: bool = False
    stored: str = "float32"

    taken = ", which MXNet took for other classes"

    @property
    def counted(self) -> Any:
        """What it counts, wherever it is declared."""
        return *super().counted, self.masks

    @property
    def program(self) -> Hashable:
        """What the graph that counts depends on: not on the number of classes that each batch gives."""
        return self if self.output is None else replace(self, classes=0)

    @property
    def is_class_row(self) -> bool:
        """Whether there is one class index per sample."""
        return self.is_row and self.classes is not None

    @property
    def refs(self) -> set[Ref]:
        """All arrays that the rule reads."""
        return {self.label, *(ref for ref, _ in self.masks), *([self.output] if self.output else [])}

    def count(self, F: ModuleType, arrays: Mapping[Ref, Any]) -> Any:
        """Return how many values of the label break the rule, as float32 of shape (1,).

        Of numbers that are not finite, the rows that hold one are counted, where a row is an element of the
        first axis: a dense layer whose weights are 0 finds them in a tenth of the time of MXNet's sum.
        """
        if self.classes is not None or self.in_part:
            return F.sum(self.violations(F, arrays))
        values = arrays[self.label]
        if self.stored == "csr":
            sums = F.sum(values * 0, axis=1)
        elif self.is_row:
            sums = values * 0
        else:
            values = F.cast(values, "float32") if self.stored == "float16" else values
            weights = F.reshape(F.zeros_like(F.slice_axis(values, axis=0, begin=0, end=1)), shape=(1, -1))
            sums = F.FullyConnected(values, weights, num_hidden=1, no_bias=True)
        count = F.sum(sums != 0)  # 0 times NaN or infinity is NaN
        return F.cast(count, "float32") if self.stored == "float64" else count

    def violations(self, F: ModuleType, arrays: Mapping[Ref, Any]) -> Any:
        """Return 1 for each class index that breaks the rule, else 0; float32, of the label's shape."""
        if self.in_part:
            return missing_in_part(F, arrays[self.label])
        nearest, values = self.compared(F, arrays)
        wrong = F.broadcast_not_equal(nearest, values)
        for value in self.ignored:
            wrong = wrong * (values != value)
        for ref, how in self.masks:
            if how == LENGTH:
                wrong = F.SequenceMask(wrong, arrays[ref], use_sequence_length=True, value=0, axis=1)
            else:
                weighted = F.cast(arrays[ref], "float32") != 0
                weighted = F.reshape_like(weighted, wrong) if how == RESHAPED else weighted
                wrong = F.broadcast_mul(wrong, weighted)
        return wrong

    def compared(self, F: ModuleType, arrays: Mapping[Ref, Any]) -> tuple[Any, Any]:
        """Return the nearest class to each value, and the values: float32, equal where a value is a class."""
        values = F.cast(arrays[self.label], "float32")
        if self.output is None:
            return F.clip(F.trunc(values), a_min=0, a_max=(self.classes or 1) - 1), values
        # the number of classes is the size of an axis, which may differ between batches
        output = arrays[self.output]
        if self.stored != "float32":  # float16 has not all whole numbers
            output = F.cast(F.slice_axis(output, axis=0, begin=0, end=1), "float32")
        return F.take(F.contrib.arange_like(output, axis=self.axis), values, mode="clip"), values


def rows_first(rules: Iterable[LabelRule]) -> list[LabelRule]:
    """Return the rules in the order in which :func:`count_wrong` counts."""
    return sorted(rules, key=lambda rule: not rule.is_class_row)


def count_wrong(F: ModuleType, rules: Sequence[LabelRule], arrays: Mapping[Ref, Any]) -> list[Any]:
    """Return how many values break each rule, in pieces of one vector; the rules are in their order.

    Labels with one class index per sample are compared at once, with half the operators.
    """
    rows = [rule for rule in rules if rule.is_class_row]
    if len(rows) < 2:
        return [rule.count(F, arrays) for rule in rules]
    nearest, values = (F.stack(*each, axis=0) for each in zip(*(rule.compared(F, arrays) for rule in rows)))
    counts = F.sum(F.broadcast_not_equal(nearest, values), axis=1)
    return [counts, *(rule.count(F, arrays) for rule in rules[len(rows) :])]


def missing_in_part(F: ModuleType, present: Any) -> Any:
    """Return 1 for each value that is missing in a sample that has others, else 0; of shape (N, values)."""
    present = F.reshape(present, (0, -1))
    return F.broadcast_mul(1 - present, F.max(present, axis=1, keepdims=True))


def count_in_part(present: Array) -> int:
    """Return how many values :func:`missing_in_part` finds; this waits for the device."""
    return int(missing_in_part(mx.nd, present).sum().asscalar())


def label_rules(spec: TaskSpec, arrays: Mapping[Ref, Any]) -> list[LabelRule]:
    """Return the rules for a stage's slots, from one device's outputs and slots."""
    terms = [term for term in spec.terms if term.has_slots(arrays)]
    rules = []
    for where, ref, classes, ignored in declared_classes(spec):
        if _is_dense(arrays.get(ref)):
            is_row = arrays[ref].ndim == 1 and not ignored
            rules.append(LabelRule(where, ref, classes, ignored, is_row=is_row))
    rules = once([*rules, *(rule for term in terms for rule in _taken(spec, term, arrays))])
    for where, ref in finite_slots(spec, arrays, {rule.label for rule in rules}):
        array = arrays[ref]
        if np.dtype(array.dtype).kind == "f":
            stored = "csr" if array.stype == "csr" else np.dtype(array.dtype).name
            rules.append(LabelRule(where, ref, is_row=array.shape[1:] in ((), (1,)), stored=stored))
    return rules


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
        is_row = arrays[label].ndim == 1 and not ignored and not hiding
        rule = LabelRule(term.where, label, classes, ignored, masks=hiding, is_row=is_row)
        stored = np.dtype(out.dtype).name
        yield rule if axis is None else replace(rule, output=outputs[0], axis=axis, stored=stored)


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
