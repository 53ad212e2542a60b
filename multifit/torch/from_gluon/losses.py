"""Losses of Gluon as modules."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from ...gluon.compat import mx
from ...gluon.losses import SegmentationCELoss, SequenceCELoss, class_axis, is_kind, weighs_values
from ...gluon.optim.parameters import named_parameters
from ...gluon.step.loss_calls import OURS, ignores_values, multi_box_loss
from ...spec.terms import Term, is_multi_box
from .module import GluonModule
from .parameters import Held


class BridgedLoss(GluonModule):
    """A loss of Gluon, or a function of arrays that also takes symbols, traced once.

    It returns what the loss does: mostly a value for each sample. Where labels may be missing or have
    weights, a loss that weighs the values of its label has the `reduction` "sample"; with "none", it returns
    these values, whose sums are those for the samples. `class_axis` is the axis of the classes of which it
    takes indices, and `ignore_index` the label that it leaves out; `missing_as` is the label that stands for
    missing ones, if the loss leaves single ones out by itself. Raises SpecError if it cannot be traced.
    """

    indices_only = True  # with a `class_axis`, labels of the output's shape are no probabilities
    way_out = "use F's operators on what it gets, as in a HybridBlock, and no shapes or numbers"

    def __init__(self, term: Term, tensors: dict[Any, Any], initialise: Callable[[], object]) -> None:
        super().__init__(term.where, initialise)
        fn: Any = term.spec.fn
        block = fn if isinstance(fn, mx.gluon.Block) else mx.gluon.nn.HybridSequential()
        by_value = term.weights is not None or (term.present and not is_kind(fn, *OURS))
        self._weighs = weighs_values(fn) and bool(by_value)
        self.loss, self.reduction = fn, "sample" if self._weighs else "none"
        self._call = partial(multi_box_loss, fn) if is_multi_box(fn) else fn
        self.class_axis = class_axis(fn)
        self.ignore_index = getattr(fn, "_ignore_label", None)
        self.missing_as = self.ignore_index if term.present and ignores_values(term) else None
        self.held = Held(self, block, named_parameters(block, {}), tensors, f"the parameters of {term.where}")
        self.train()
        arguments = [False] * len(term.args)
        traced = self.trace(self._call, arguments, self.held.frozen_norms())
        self._averages = traced.operators[-1] == "mean"  # over the values of a sample

    def forward(self, *tensors: Tensor | None) -> Any:
        """Return the loss for outputs and labels; MXNet's numbers, of shape (1,), have no dimension."""
        if self._weighs and self.reduction == "none":
            values = self.compute("values", partial(_values, self.loss), tensors)
            return values * (len(values) / max(values.numel(), 1)) if self._averages else values
        returned = self.compute("loss", self._call, tensors)
        samples = next((len(each) for each in tensors if each is not None and each.dim()), 1)
        parts = returned if isinstance(returned, list) else [returned]
        parts = [as_number(part) if samples > 1 else part for part in parts]
        return parts if isinstance(returned, list) else parts[0]


def as_number(loss: Tensor) -> Tensor:
    """Return a loss without dimensions if it is a number of MXNet's, of shape (1,)."""
    return loss.reshape(()) if tuple(loss.shape) == (1,) else loss


def _values(loss: Any, *symbols: Any) -> Any:
    """Return a loss's values, one for each value of the label."""
    factor = loss._weight
    if not is_kind(loss, SegmentationCELoss, SequenceCELoss):
        return loss(*symbols).get_children()[0]  # what its last operator, a mean or a sum, reduces
    if is_kind(loss, SequenceCELoss):
        loss = SequenceCELoss(-1 if loss._classes_last else 1, loss._sparse_label)
        values = loss(*symbols).get_children()[0]
    else:
        values = _pixels(loss, *symbols)
    return values if factor is None else values * factor


def _pixels(loss: Any, scores: Any, label: Any) -> Any:
    """Return the losses of pixels, divided by the number of a sample's valid ones."""
    F = mx.sym
    values = -F.pick(F.log_softmax(scores, axis=loss._axis), label, axis=loss._axis)
    valid = F.ones_like(values)
    if loss._ignore_label is not None:
        valid = F.reshape_like(F.cast(label, "int32") != loss._ignore_label, values)
    valid = F.where(valid, F.ones_like(values), F.zeros_like(values))
    pixels = F.reshape(F.sum(valid, axis=0, exclude=True), (-1, 1))
    flat = F.reshape(F.where(valid, values, F.zeros_like(values)), (0, -1))
    return F.reshape_like(F.broadcast_div(flat, F.broadcast_maximum(pixels, F.ones_like(pixels))), values)
