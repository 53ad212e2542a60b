"""Losses of Gluon as modules."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from ...errors import SpecError
from ...gluon.compat import mx
from ...gluon.execution.loss_calls import multi_box_loss
from ...gluon.losses import SegmentationCELoss, SequenceCELoss, is_kind, weighs_values
from ...gluon.ops import sample_sums
from ...gluon.optim.parameters import named_parameters
from ...spec.terms import Term, is_multi_box
from .module import OWN_GRADIENTS, GluonModule
from .parameters import Held


class BridgedLoss(GluonModule):
    """A loss of Gluon, or a function of arrays that also takes symbols, traced once.

    It returns what the loss does: mostly a value for each sample. Where labels may be missing or have weights, a
    loss that weighs the values of its label has the `reduction` "sample"; with "none", it returns these values,
    whose sums are those for the samples.

    `tensors` are the parameters that other modules hold, by Gluon's parameter. Raises SpecError if it cannot
    be traced.
    """

    way_out = "use F's operators on what it gets, as in a HybridBlock, and no shapes or numbers"

    def __init__(self, term: Term, tensors: dict[Any, Any], initialise: Callable[[], object]) -> None:
        super().__init__(term.where, initialise)
        fn: Any = term.spec.fn
        block = fn if isinstance(fn, mx.gluon.Block) else mx.gluon.HybridSequential()
        self._weighs = weighs_values(fn) and bool(term.present or term.weights is not None)
        self.loss, self.reduction = fn, "sample" if self._weighs else "none"
        self._sums = is_kind(fn, SequenceCELoss, SegmentationCELoss)
        self._call = partial(multi_box_loss, fn) if is_multi_box(fn) else fn
        self.held = Held(self, block, named_parameters(block, {}), tensors, f"the parameters of {term.where}")
        self.train()
        arguments = [False] * len(term.args)
        traced = self.trace(self._call, arguments, self.held.frozen_norms())
        own = sorted(OWN_GRADIENTS & set(traced.operators))
        if own:
            raise SpecError(
                f'engine="torch": {term.where} ignores the gradient that it receives, by {", ".join(own)}, so '
                'that weights have no effect; use another loss, or use engine="mxnet"'
            )

    def forward(self, *tensors: Tensor | None) -> Any:
        """Return the loss for outputs and labels."""
        if not self._weighs or self.reduction != "none":
            return self.compute("loss", self._call, tensors)
        values = self.compute("values", partial(_values, self.loss), tensors)
        return values if self._sums else values * (len(values) / max(values.numel(), 1))


class _Unreduced:
    """MXNet's operators on symbols, without the reductions from values to samples."""

    def __getattr__(self, name: str) -> Any:
        return getattr(mx.sym, name)

    def mean(self, values: Any, axis: Any = None, exclude: bool = False) -> Any:
        """Return the values."""
        return values

    def sum(self, values: Any, axis: Any = None) -> Any:
        """Return the values, or their sums over classes."""
        return mx.sym.sum(values, axis=axis) if axis == -1 else values


def _values(loss: Any, *symbols: Any) -> Any:
    """Return a loss's values, one for each value of the label."""
    if not is_kind(loss, SegmentationCELoss):
        return loss.hybrid_forward(_Unreduced(), *symbols)
    F = mx.sym
    values = -F.pick(F.log_softmax(symbols[0], axis=loss._axis), symbols[1], axis=loss._axis)
    valid = F.ones_like(values)
    if loss._ignore_label is not None:
        valid = F.reshape_like(F.cast(symbols[1], "int32") != loss._ignore_label, values)
    valid = F.where(valid, F.ones_like(values), F.zeros_like(values))
    pixels = F.reshape(sample_sums(F, valid), (-1, 1))
    flat = F.reshape(F.where(valid, values, F.zeros_like(values)), (0, -1))
    shares = F.broadcast_div(flat, F.broadcast_maximum(pixels, F.ones_like(pixels)))
    return mx.gluon.loss._apply_weighting(F, F.reshape_like(shares, values), loss._weight)
