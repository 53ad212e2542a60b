"""Calls losses with the tensors that they take, value by value where labels are missing or have weights."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ..spec.checks.results import check_rows, check_weights, has_values
from ..spec.terms import Ref, Term
from .user_code import note_arguments

WITHOUT_REDUCTION = (
    ': give a module with reduction=, which is then called with "none", or functools.partial(function, '
    'reduction="none")'
)
_COPIES: WeakKeyDictionary[nn.Module, nn.Module] = WeakKeyDictionary()  # of losses, with reduction="none"


def needs_values(term: Term) -> bool:
    """Whether a loss is needed value by value: labels may be missing, or it has weights or a normalizer."""
    return bool(term.present) or term.weights is not None or term.spec.normalize_by is not None


def call_loss(term: Term, arrays: Mapping[Ref, Any], samples: int | None = None) -> list[Any]:
    """Return the parts that a term's loss returns; the first output that it takes if it has no function.

    A loss that is needed value by value is called without its reduction, if it has one. Its values are then
    multiplied by the weights, and are 0 where a label is missing. Unless a normalizer divides them, values of
    a loss that is a mean are divided by the number of values of a sample, so that their sum over `samples`
    is the mean; by default, the samples are the rows of the values.

    Raises SpecError if a loss that is needed value by value returns a number, and what the loss raises.
    """
    function: Any = term.spec.fn
    arguments = [arrays[ref] for ref in term.args]
    masks, fill = [arrays[ref] for ref in term.present], missing_as(term)
    if fill is not None:
        (mask,), masks = masks, []
        arguments[1] = torch.where(mask != 0, arguments[1], fill)
    if function is None:
        parts: list[Any] = arguments[:1]
    else:
        called = by_value(function) if needs_values(term) else function
        try:
            returned = called(*arguments)
        except Exception as error:
            note_arguments(error, term.where, zip(map(str, term.args), arguments))
            raise
        parts = list(returned) if isinstance(returned, (list, tuple)) else [returned]
        if divides_values(term):
            parts = [part * ((samples or len(part)) / max(part.numel(), 1)) for part in parts]
    if (masks or term.weights is not None) and all(isinstance(part, Tensor) for part in parts):
        return _changed(term, arrays, parts, masks)
    return parts


def divides_values(term: Term) -> bool:
    """Whether the values of a loss, which is a mean, are divided by the number of values of a sample."""
    loss: Any = term.spec.fn
    is_mean = getattr(loss, "reduction", None) == "mean" and by_value(loss) is not loss
    return is_mean and needs_values(term) and term.spec.normalize_by is None


def missing_as(term: Term) -> float | None:
    """Return the label that stands for missing ones in a loss that ignores single ones; else None."""
    value: float | None = getattr(term.spec.fn, "missing_as", None)
    return value


def by_value(loss: Callable[..., Any]) -> Callable[..., Any]:
    """Return a copy of a loss with ``reduction="none"``, made once; the loss itself if it has no reduction.

    The copy shares the parameters of the loss.
    """
    loss = getattr(loss, "_orig_mod", loss)  # attributes of a compiled module are not those of its module
    if not isinstance(loss, nn.Module) or getattr(loss, "reduction", "none") == "none":
        return loss
    if loss not in _COPIES:
        _COPIES[loss] = copy.copy(loss)
        _COPIES[loss].reduction = "none"
    return _COPIES[loss]


def present_share(term: Term, slots: Mapping[str, Any]) -> Tensor:
    """Return the share of each sample that counts for a term whose labels may be missing, of shape (N,)."""
    masks = [_flat(slots[ref.name]) for ref in term.present]
    if missing_as(term) is not None:
        return masks[0].amax(dim=1).double()
    if len({mask.shape[1] for mask in masks} - {1}) > 1:
        return _rows(masks)
    return _product(masks).mean(dim=1, dtype=torch.float64)


def _changed(
    term: Term, arrays: Mapping[Ref, Any], parts: list[Tensor], masks: Sequence[Tensor]
) -> list[Tensor]:
    """Return the parts times their weights, 0 where labels are missing.

    Values count one by one if there are as many as the labels have; otherwise, a sample counts if all values
    of its labels are present.
    """
    if term.weights is not None:
        parts = [_weighted(term, part, arrays[term.weights]) for part in parts]
    if not masks:
        return parts
    flat = list(map(_flat, masks))
    if has_values(parts, masks):
        present = _product(flat) != 0
        return [torch.where(present.reshape(part.shape), part, 0.0) for part in parts]
    rows = _rows(flat) != 0
    for part in parts:
        check_rows(term, part, len(rows), WITHOUT_REDUCTION)
    return [torch.where(rows.reshape(-1, *[1] * (part.dim() - 1)), part, 0.0) for part in parts]


def _weighted(term: Term, values: Tensor, weight: Tensor) -> Tensor:
    if weight.numel() == values.numel() and values.dim():
        return values * weight.reshape(values.shape)
    check_weights(term, values, weight)
    return values * weight.reshape(-1, *[1] * (values.dim() - 1))


def _flat(mask: Tensor) -> Tensor:
    """Return a mask as (N, values of a sample)."""
    return mask.flatten(1) if mask.dim() > 1 else mask[:, None]


def _rows(masks: Sequence[Tensor]) -> Tensor:
    """Return 1 for the samples whose values are present in all masks of shape (N, values), else 0."""
    return _product([mask.amin(dim=1, keepdim=True) for mask in masks])[:, 0]


def _product(masks: Sequence[Tensor]) -> Tensor:
    return reduce(torch.mul, masks)
