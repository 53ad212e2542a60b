"""Check losses on one batch, before anything is updated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..engines.batch import as_numpy
from ..engines.metric_figures import function_arity_problem
from ..spec.checks import describe, results
from ..spec.checks.values import elementwise_problem
from ..spec.terms import OUTPUTS, Ref, Term, listed
from ..utils.errors import Problem
from ..utils.signatures import arity_problem
from .labels import CLASS_FUNCTIONS, CLASS_LOSSES, class_indices
from .loss_calls import by_value, call_loss, needs_values
from .stage_metric import StageMetric
from .torchmetrics import TorchMetric
from .user_code import user_code

ELEMENTWISE: tuple[Any, ...] = (
    nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss, nn.BCELoss, nn.BCEWithLogitsLoss, nn.KLDivLoss,
    nn.PoissonNLLLoss, nn.SoftMarginLoss, nn.HingeEmbeddingLoss, nn.MultiLabelSoftMarginLoss,
    F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.binary_cross_entropy, F.kl_div,
    F.binary_cross_entropy_with_logits, F.poisson_nll_loss, F.soft_margin_loss, F.hinge_embedding_loss,
    F.multilabel_soft_margin_loss,
)  # fmt: skip
INDEXED: tuple[Any, ...] = (*CLASS_LOSSES, *CLASS_FUNCTIONS)
STOCK = "torch.nn"  # its losses have a gradient, which scales with their weight
NO_GRADIENT = results.NO_GRADIENT.format("detach(), item() or torch.no_grad()")
SUMMED = (
    'has reduction="sum", and a number counts as the mean of the batch\'s samples, so that an update would '
    'depend on the size of batches; give reduction="none", whose values are added up and divided by the '
    "number of samples, or by normalize_by="
)


def is_kind(loss: Any, kinds: Sequence[Any]) -> bool:
    """Whether a loss computes what one of PyTorch's computes; a subclass may not replace its forward."""
    loss = loss.func if isinstance(loss, partial) else getattr(loss, "_orig_mod", loss)
    classes: list[Any] = [kind for kind in kinds if isinstance(kind, type)]
    return loss in kinds or any(isinstance(loss, c) and type(loss).forward is c.forward for c in classes)


def class_axis(loss: Any, output: Tensor, label: Tensor) -> int | None:
    """Return the axis of the classes if a loss takes these labels for class indices, else None."""
    axis, _ = class_indices(loss)
    if axis is None or output.dim() == 0:
        return None
    if label.shape == output.shape and not getattr(loss, "indices_only", False):
        return None
    return axis + output.dim() if axis < 0 else min(axis, output.dim() - 1)


def check_call(term: Term) -> list[Problem]:
    """Check how many arguments a loss takes, and that it does not add up the samples itself."""
    fn: Any = term.spec.fn
    if fn is None:
        return []
    function = fn.forward if isinstance(fn, nn.Module) else fn
    messages = [arity_problem(term.where, function, [str(ref) for ref in term.args])]
    if getattr(fn, "reduction", None) == "sum" and not needs_values(term):
        messages.append(f"{term.where}: {type(fn).__name__} {SUMMED}")
    return [Problem("spec", message) for message in messages if message]


def check_metric(metric: StageMetric) -> list[Problem]:
    """Check how many arguments a metric takes, or its transform."""
    term, measure, message = metric.term, metric.metric, None
    if term.spec.transform is not None:
        names = [str(ref) for ref in term.args] + list(term.losses)
        message = arity_problem(f"{term.where}.transform", term.spec.transform, names)
    elif metric.is_function:
        message = function_arity_problem(term)
    elif not metric.is_summed and not isinstance(measure, TorchMetric):
        names, fix = ["labels", "outputs"], "take both, in that order"
        message = arity_problem(f"{term.where}.update", measure.update, names, fix=fix)
    return [Problem("spec", message)] if message else []


def inspect_term(term: Term, arrays: Mapping[Ref, Any], labels_fit: bool, training: bool) -> list[Problem]:
    """Check the shapes that a loss takes and, if the labels are valid, its result and its gradient.

    Raises what the loss raises.
    """
    fn, outputs, labels = term.spec.fn, term.outputs, term.labels
    stock = isinstance(fn, nn.Module) and type(fn).__module__.startswith(STOCK)
    messages: list[str | None] = [
        f"{term.where}: {_shown(ref, arrays)}; a loss needs real numbers"
        for ref in outputs
        if stock and not arrays[ref].is_floating_point()
    ]
    if outputs and labels and not messages:
        pair = term, outputs[0], labels[0], arrays
        messages = [_elementwise(*pair) or _classes(*pair) or _class_weights(*pair)]
    if labels_fit and not any(messages):
        messages = [_result(term, arrays, stock, training)]
    return [Problem("spec", message) for message in messages if message]


def _elementwise(term: Term, output: Ref, label: Ref, arrays: Mapping[Ref, Any]) -> str | None:
    """Check the shapes of what is compared value by value; PyTorch broadcasts others without an error."""
    out, true = arrays[output], arrays[label]
    crosses, message = _cross_shape(out, true), None
    if out.shape != true.shape and is_kind(term.spec.fn, ELEMENTWISE):
        message = elementwise_problem(term.where, (output.name, out), (label.name, true))
    elif not (crosses and _is_crossed(term, crosses, label, arrays)):
        return None
    compares = "compares each value with each other one" if crosses else "does not compare value by value"
    return message or (
        f"{term.where}: {_shown(output, arrays)} and {_shown(label, arrays)}, which PyTorch {compares}; give "
        "both one shape, such as output.squeeze(1) or label[:, None]"
    )


def _cross_shape(output: Tensor, label: Tensor) -> torch.Size | None:
    """Return the shape to which two arrays are broadcast if each row then meets each other one, else None."""
    try:
        shape = torch.broadcast_shapes(output.shape, label.shape)
    except RuntimeError:
        return None
    is_larger = shape.numel() > max(output.numel(), label.numel())
    return shape if is_larger and output.shape[:1] == label.shape[:1] else None


def _is_crossed(term: Term, shape: torch.Size, label: Ref, arrays: Mapping[Ref, Any]) -> bool:
    """Whether a function compares each sample's output with each other sample's label, in this shape.

    Then its result has that shape or, if it is a number, stays the same if samples swap their labels, but not
    without labels.
    """
    fn: Any = term.spec.fn

    def value(label_values: Tensor) -> Any:
        changed = {**arrays, label: label_values}
        with torch.no_grad(), user_code(lambda: term.where, *((str(ref), changed[ref]) for ref in term.args)):
            returned = listed(by_value(fn)(*[changed[ref] for ref in term.args]))
        return returned[term.minimized] if len(returned) > term.minimized else None

    true = arrays[label]
    loss, swapped = value(true), true.roll(1, 0)
    if not isinstance(loss, Tensor):
        return False
    if loss.numel() == 1 and not torch.equal(true, swapped):
        others = value(swapped), value(torch.zeros_like(true))
        return [torch.allclose(loss, each, rtol=1e-4) for each in others] == [True, False]
    return loss.shape == shape


def _classes(term: Term, output: Ref, label: Ref, arrays: Mapping[Ref, Any]) -> str | None:
    out, true = arrays[output], arrays[label]
    axis = class_axis(term.spec.fn, out, true)
    if axis is None:
        return None
    rows = out.shape[:axis] + out.shape[axis + 1 :]
    if true.shape == rows or (true.numel() == rows.numel() and not is_kind(term.spec.fn, INDEXED)):
        return None
    needed = f"the output's {rows.numel()} rows of {out.shape[axis]} classes need one class index each"
    pair = f'output "{output.name}" {describe.array(out)} and label "{label.name}" {describe.array(true)}'
    return f"{term.where}: {pair} do not fit; {needed}, a label of shape {tuple(rows)}"


def _class_weights(term: Term, output: Ref, label: Ref, arrays: Mapping[Ref, Any]) -> str | None:
    """Check that a loss with class weights takes class indices, and the classes of these weights."""
    fn = term.spec.fn
    if term.spec.class_weights is None or not is_kind(fn, (*INDEXED, *ELEMENTWISE)):
        return None
    axis = class_axis(fn, arrays[output], arrays[label])
    binary = 2 if is_kind(fn, (nn.BCELoss, nn.BCEWithLogitsLoss)) else None
    return results.class_weights_problem(term, binary if axis is None else arrays[output].shape[axis])


def _result(term: Term, arrays: Mapping[Ref, Any], stock: bool, training: bool) -> str | None:
    """Check what a loss returns, and that its gradient scales with its weight, on copies of its outputs.

    When `training`, a loss without a gradient is an error, unless it is 0, because there may be nothing to
    learn in the batch.
    """
    outputs = {ref: arrays[ref].detach() for ref in term.outputs}
    copies = {ref: each.requires_grad_(each.is_floating_point()) for ref, each in outputs.items()}
    variables = [copy for copy in copies.values() if copy.requires_grad]
    with torch.enable_grad():
        values = call_loss(term, {**arrays, **copies})
    is_double = any(copy.dtype == torch.float64 for copy in copies.values())
    dtype = torch.float64 if is_double else torch.float32
    cast = f"{str(dtype)[6:]}: cast it, with to({dtype})"
    message = results.parts_problem(term, values, Tensor, "a tensor", {torch.float32, dtype}, cast)
    if message is not None or not variables:
        return message and f"{term.where}: {message}"
    loss = values[term.minimized]
    if not loss.requires_grad:
        is_constant = training and term.spec.weight != 0 and bool(loss.any())
        return f"{term.where}: {NO_GRADIENT}" if is_constant else None

    ones, fours = (
        torch.autograd.grad(loss, variables, loss.new_full(loss.shape, scale), True, allow_unused=True)
        for scale in (1.0, 4.0)
    )
    if stock:
        return None
    pairs = [(as_numpy(one), as_numpy(four)) for one, four in zip(ones, fours) if one is not None]
    way_out = "multiply by grad_output in the backward() of its autograd.Function"
    message = results.weight_problem(term.spec.fn, pairs, way_out)
    return message and f"{term.where}: {message}"


def _shown(ref: Ref, arrays: Mapping[Ref, Any]) -> str:
    kind = "output" if ref.space == OUTPUTS else "label"
    return f'the {kind} "{ref.name}" is {describe.array(arrays[ref])}'
