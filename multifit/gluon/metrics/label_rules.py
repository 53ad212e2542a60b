"""Rules for the values of slots: inputs and labels must be finite numbers, or labels existing classes.

MXNet's losses silently truncate and clip class indices, and a single NaN spoils all parameters. The first
batch is searched for values that break a rule; in later batches, these are counted on the devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any, Collection, Iterator, Mapping, Sequence

import numpy as np

from ...protocols import Array, Tensor
from ...spec import TaskSpec
from ...spec.names import LABELS, OUTPUTS, Ref
from ...spec.terms import Term
from ..compat import mx
from ..loss_kinds import class_axis

LENGTH, WEIGHT, RESHAPED = "length", "weight", "reshaped weight"  # how a mask is applied


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
    if axis is not None and -len(out.shape) <= axis < len(out.shape):
        present = [ref for ref in others if arrays.get(ref) is not None]
        masks = [(ref, _mask(arrays[ref], arrays[label])) for ref in present]
        hiding = tuple((ref, how) for ref, how in masks if how)
        ignored = tuple(_ignored(spec, term, label.name))
        yield LabelRule(term.where, label, out.shape[axis], outputs[0], ignored, hiding)


def _is_dense(array: Array | None) -> bool:
    return getattr(array, "stype", None) == "default"


def _mask(mask: Array, label: Array) -> str:
    """Return how another argument of a loss hides values of its label; "" if it does not."""
    if len(label.shape) > 1 and mask.shape == label.shape[:1]:
        return LENGTH
    if len(mask.shape) == len(label.shape):
        return WEIGHT if all(one in (1, other) for one, other in zip(mask.shape, label.shape)) else ""
    return RESHAPED if mask.size == label.size else ""


def _ignored(spec: TaskSpec, term: Term, name: str) -> list[float]:
    """Return the values that mean "no label".

    That is the value that the loss ignores. A value that only the LabelSpec declares counts if the loss also
    takes a mask.
    """
    by_loss = getattr(term.spec.fn, "_ignore_label", None)
    label = spec.label_specs.get(name)
    masked = len(term.args) > 2 and label is not None and label.ignore is not None
    return ([] if by_loss is None else [by_loss]) + ([label.ignore] if masked and label else [])
