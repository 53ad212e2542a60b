"""Which slots and labels are valid, and how many of a batch are not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..checks import counted_labels_problem, partly_missing_problem
from ..errors import Problem
from ..spec import TaskSpec
from ..spec.parsing import label_of
from ..spec.terms import Term
from .loss_calls import missing_as

CLASS_LOSSES = nn.CrossEntropyLoss, nn.NLLLoss, nn.MultiMarginLoss
CLASS_FUNCTIONS = F.cross_entropy, F.nll_loss, F.multi_margin_loss


@dataclass(frozen=True)
class LabelRule:
    """A rule for the values of one slot, which `where` names or takes.

    With `classes`, values must be class indices, or one of `ignored`; without, finite numbers. With
    `in_part`, the slot is 1 where a label is present, and must be so for all values of a sample or for none.
    """

    where: str
    slot: str
    classes: int | None = None
    ignored: tuple[float, ...] = ()
    in_part: bool = False

    @property
    def key(self) -> str:
        """The rule's name in a checkpoint."""
        return f"{self.where}: {self.slot}"

    def count(self, values: Tensor) -> Tensor:
        """Return how many values break the rule, without waiting; of numbers not finite, how many rows.

        0 times NaN or infinity is NaN, so that a product with zeros finds such rows in one pass.
        """
        if self.in_part:
            present = values.flatten(1)
            return torch.count_nonzero((1 - present) * present.amax(1, keepdim=True))
        if self.classes is not None:
            return self.violations(values).sum()
        if values.dim() < 2 or not values.is_floating_point():
            return torch.count_nonzero(values * 0)
        rows = values.flatten(1)
        return torch.count_nonzero(torch.mv(rows, _zeros(rows.shape[1], rows.dtype, rows.device)))

    def violations(self, values: Tensor) -> Tensor:
        """Return where values are no classes."""
        whole = values.trunc() if values.is_floating_point() else values
        wrong = whole.clamp(0, (self.classes or 1) - 1) != values
        for value in self.ignored:
            wrong = wrong & (values != value)
        return wrong

    def problem(self, kind: str, count: int) -> Problem:
        """Return the problem of so many wrong values in "training" or "evaluation"."""
        if self.in_part:
            return partly_missing_problem(self.where, self.slot.partition(".")[2], kind, count)
        return counted_labels_problem(self.where, self.slot, self.classes, kind, count, taken="")


@lru_cache(maxsize=16)
def _zeros(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.zeros(size, dtype=dtype, device=device)


def label_rules(
    spec: TaskSpec,
    outputs: Mapping[str, Tensor],
    slots: Mapping[str, Tensor | None],
    parts: Mapping[str, Sequence[Tensor]],
) -> list[LabelRule]:
    """Return the rules for a batch's slots; `parts` are what the losses returned."""
    rules = []
    for name, label in spec.label_specs.items():
        if label.classes is not None and slots.get(name) is not None:
            ignored = () if label.ignore is None else (label.ignore,)
            rules.append(LabelRule(f'labels["{name}"]', name, label.classes, ignored))
    for term in spec.terms:
        if term.key in parts and term.outputs and term.labels and slots.get(term.labels[0].name) is not None:
            rules += _taken(spec, term, outputs, slots)
    different = {(rule.slot, rule.classes, rule.ignored): rule for rule in reversed(rules)}
    rules = list(reversed(different.values()))
    rules += _finite(spec, slots, {rule.slot for rule in rules})
    return [*rules, *partly_missing(spec, slots, parts)]


def class_indices(fn: Any) -> tuple[int | None, list[float]]:
    """Return the class axis of a loss that takes class indices, None for any other; and what it ignores."""
    function, given = (fn.func, fn.keywords) if isinstance(fn, partial) else (fn, getattr(fn, "__dict__", {}))
    if not isinstance(function, CLASS_LOSSES) and function not in CLASS_FUNCTIONS:
        return getattr(fn, "class_axis", None), [
            each for each in [getattr(fn, "ignore_index", None)] if each is not None
        ]
    takes_ignored = not isinstance(function, nn.MultiMarginLoss) and function is not F.multi_margin_loss
    return 1, [given.get("ignore_index", -100)] if takes_ignored else []


def _taken(
    spec: TaskSpec, term: Term, outputs: Mapping[str, Tensor], slots: Mapping[str, Any]
) -> Iterator[LabelRule]:
    """Yield the rule for the label of a loss that takes class indices.

    A value that only the LabelSpec ignores is ignored if the loss takes a mask, unless PyTorch raises for it.
    """
    name, output = term.labels[0].name, outputs[term.outputs[0].name]
    axis, ignored = class_indices(term.spec.fn)
    classes = None
    if axis is not None and -output.dim() <= axis < output.dim() and slots[name].shape != output.shape:
        classes = output.shape[axis]
    elif axis is None and isinstance(term.spec.class_weights, tuple):
        classes = len(term.spec.class_weights)
    if classes is not None:
        label = spec.label_specs.get(name)
        takes_mask = len(term.args) > 2 or term.spec.sample_weight is not None
        is_torchs = axis is not None and not hasattr(term.spec.fn, "class_axis")
        if takes_mask and not is_torchs and label is not None and label.ignore is not None:
            ignored = [*ignored, label.ignore]
        yield LabelRule(term.where, name, classes, tuple(dict.fromkeys(ignored)))


def _finite(spec: TaskSpec, slots: Mapping[str, Any], classes: set[str]) -> Iterator[LabelRule]:
    """Yield the rules that inputs, and labels that are taken, except class indices, must be finite."""
    taken = {ref.name for taker in spec.takers for ref in taker.labels}
    taken |= {term.spec.sample_weight for term in spec.terms if term.spec.sample_weight}
    for name in spec.slot_names:
        value, where = slots.get(name), "inputs" if name in spec.inputs else "labels"
        if name in classes or name in spec.state or (where == "labels" and name not in taken):
            continue
        if value is not None and value.is_floating_point():
            yield LabelRule(f'{where}["{name}"]', name)


def partly_missing(
    spec: TaskSpec, slots: Mapping[str, Any], parts: Mapping[str, Sequence[Tensor]]
) -> Iterator[LabelRule]:
    """Yield the rules that losses without a value for each value of their label need whole samples."""
    for term in spec.terms:
        if missing_as(term) is not None:
            continue
        masks = [(ref, slots[ref.name]) for ref in term.present if term.key in parts]
        size = max((mask.numel() for _, mask in masks), default=0)
        if any(part.numel() != size for part in parts.get(term.key, ())):
            for ref, mask in masks:
                if mask.numel() > len(mask):
                    yield LabelRule(term.where, f"present.{label_of(ref).name}", in_part=True)
