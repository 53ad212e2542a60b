"""Which slots and labels are valid, and how many of a batch are not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..engines import labels
from ..engines.labels import declared_classes, finite_slots, once
from ..spec import TaskSpec
from ..spec.terms import Ref, Term, by_reference
from .loss_calls import missing_as

CLASS_LOSSES = nn.CrossEntropyLoss, nn.NLLLoss, nn.MultiMarginLoss
CLASS_FUNCTIONS = F.cross_entropy, F.nll_loss, F.multi_margin_loss


class LabelRule(labels.LabelRule):
    """A rule for the values of one slot, as tensors."""

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
    arrays = by_reference(outputs, slots)
    rules = [LabelRule(*each) for each in declared_classes(spec) if arrays.get(each[1]) is not None]
    for term in spec.terms:
        if term.key in parts and term.outputs and term.labels and arrays.get(term.labels[0]) is not None:
            rules += _taken(spec, term, arrays)
    rules = once(rules)
    finite = finite_slots(spec, arrays, {rule.label for rule in rules})
    rules += [LabelRule(where, ref) for where, ref in finite if arrays[ref].is_floating_point()]
    return [*rules, *partly_missing(spec, slots, parts)]


def class_indices(fn: Any) -> tuple[int | None, list[float]]:
    """Return the class axis of a loss that takes class indices, None for any other; and what it ignores."""
    function, options = (
        (fn.func, fn.keywords) if isinstance(fn, partial) else (fn, getattr(fn, "__dict__", {}))
    )
    if not isinstance(function, CLASS_LOSSES) and function not in CLASS_FUNCTIONS:
        return getattr(fn, "class_axis", None), [
            each for each in [getattr(fn, "ignore_index", None)] if each is not None
        ]
    takes_ignored = not isinstance(function, nn.MultiMarginLoss) and function is not F.multi_margin_loss
    return 1, [options.get("ignore_index", -100)] if takes_ignored else []


def _taken(spec: TaskSpec, term: Term, arrays: Mapping[Ref, Any]) -> Iterator[LabelRule]:
    """Yield the rule for the label of a loss that takes class indices.

    A value that only the LabelSpec ignores is ignored if the loss takes a mask, unless PyTorch raises for it.
    """
    ref, output = term.labels[0], arrays[term.outputs[0]]
    axis, ignored = class_indices(term.spec.fn)
    classes = None
    if axis is not None and -output.dim() <= axis < output.dim() and arrays[ref].shape != output.shape:
        classes = output.shape[axis]
    elif axis is None and isinstance(term.spec.class_weights, tuple):
        classes = len(term.spec.class_weights)
    if classes is not None:
        label = spec.label_specs.get(ref.name)
        takes_mask = len(term.args) > 2 or term.spec.sample_weight is not None
        is_torchs = axis is not None and not hasattr(term.spec.fn, "class_axis")
        if takes_mask and not is_torchs and label is not None and label.ignore is not None:
            ignored = [*ignored, label.ignore]
        yield LabelRule(term.where, ref, classes, tuple(dict.fromkeys(ignored)))


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
                    yield LabelRule(term.where, ref, in_part=True)
