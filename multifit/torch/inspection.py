"""Check losses on one batch, before anything is updated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..checks import describe, elementwise_problem
from ..checks.losses import class_weights_problem, parts_problem
from ..errors import Problem
from ..signatures import arity_problem
from ..spec.names import OUTPUTS, Ref, listed
from ..spec.plan import function_name
from ..spec.terms import Term
from .labels import class_indices
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
INDEXED: tuple[Any, ...] = (
    nn.CrossEntropyLoss, nn.NLLLoss, nn.MultiMarginLoss, F.cross_entropy, F.nll_loss, F.multi_margin_loss
)  # fmt: skip
STOCK = "torch.nn"  # its losses have a gradient, which scales with their weight
NO_GRADIENT = (
    "returns numbers that autograd has not computed from the outputs, so they train nothing; compute them "
    "from the outputs, without detach(), item() or torch.no_grad(), or give weight=0 to only measure the loss"
)
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
    is_share = label.shape == output.shape or output.dim() == 0
    if axis is None or is_share:
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
    term, own = metric.term, metric.metric
    names = [str(ref) for ref in term.args] + list(term.losses)
    message = None
    if term.spec.transform is not None:
        message = arity_problem(f"{term.where}.transform", term.spec.transform, names)
    elif metric.is_whole and not metric.is_summed:
        weights = [] if term.spec.sample_weight is None else ["sample_weight"]
        fix = " and ".join(["take both, in that order", *weights])
        taken = ["labels", "outputs"]
        message = arity_problem(term.where, term.spec.metric, taken, fix=fix, keywords=weights)  # type: ignore[arg-type]
    elif not metric.is_whole and not isinstance(own, TorchMetric):
        message = arity_problem(
            f"{term.where}.update", own.update, ["labels", "outputs"], fix="take both, in that order"
        )
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
    if out.shape == true.shape or not is_kind(term.spec.fn, ELEMENTWISE):
        return _crossed(term, output, label, arrays)
    pair = (output.name, out), (label.name, true)
    return elementwise_problem(term.where, *pair) or _mixed(term, output, label, arrays)


def _mixed(term: Term, output: Ref, label: Ref, arrays: Mapping[Ref, Any]) -> str:
    crosses = _cross_shape(arrays[output], arrays[label])
    compares = "compares each value with each other one" if crosses else "does not compare value by value"
    return (
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


def _crossed(term: Term, output: Ref, label: Ref, arrays: Mapping[Ref, Any]) -> str | None:
    """Check that a function does not compare each sample's output with each other sample's label.

    Then its result has the shape of such a product or, if it is a number, stays the same if samples swap
    their labels, but not without labels.
    """
    out, true, fn = arrays[output], arrays[label], term.spec.fn
    shape = _cross_shape(out, true)
    if shape is None or fn is None or is_kind(fn, INDEXED):
        return None

    def value(label_values: Tensor) -> Any:
        given = {**arrays, label: label_values}
        with torch.no_grad(), user_code(lambda: term.where, *((str(ref), given[ref]) for ref in term.args)):
            returned = by_value(fn)(*[given[ref] for ref in term.args])
        return listed(returned)[term.minimized] if len(listed(returned)) > term.minimized else None

    found, swapped = value(true), true.roll(1, 0)
    if not isinstance(found, Tensor):
        return None
    crossed = found.shape == shape
    if found.numel() == 1 and not torch.equal(true, swapped):
        pair = [torch.allclose(found, value(each), rtol=1e-4) for each in (swapped, torch.zeros_like(true))]
        crossed = pair == [True, False]
    return _mixed(term, output, label, arrays) if crossed else None


def _classes(term: Term, output: Ref, label: Ref, arrays: Mapping[Ref, Any]) -> str | None:
    out, true = arrays[output], arrays[label]
    axis = class_axis(term.spec.fn, out, true)
    if axis is None:
        return None
    rows = out.shape[:axis] + out.shape[axis + 1 :]
    if true.shape == rows or (true.numel() == rows.numel() and not is_kind(term.spec.fn, INDEXED)):
        return None
    needed = f"the output's {rows.numel()} rows of {out.shape[axis]} classes need one class index each"
    arrays_found = (
        f'output "{output.name}" {describe.array(out)} and label "{label.name}" {describe.array(true)}'
    )
    return f"{term.where}: {arrays_found} do not fit; {needed}, a label of shape {tuple(rows)}"


def _class_weights(term: Term, output: Ref, label: Ref, arrays: Mapping[Ref, Any]) -> str | None:
    """Check that a loss with class weights takes class indices, and the classes of these weights."""
    fn = term.spec.fn
    if term.spec.class_weights is None or not is_kind(fn, (*INDEXED, *ELEMENTWISE)):
        return None
    axis = class_axis(fn, arrays[output], arrays[label])
    is_binary = is_kind(fn, (nn.BCELoss, nn.BCEWithLogitsLoss))
    return class_weights_problem(
        term, (2 if is_binary else None) if axis is None else arrays[output].shape[axis]
    )


def _result(term: Term, arrays: Mapping[Ref, Any], stock: bool, training: bool) -> str | None:
    """Check what a loss returns, and that its gradient scales with its weight, on copies of its outputs.

    When `training`, a loss without a gradient is an error, unless it is 0, because there may be nothing to
    learn in the batch.
    """
    copies = {
        ref: arrays[ref].detach().requires_grad_(arrays[ref].is_floating_point()) for ref in term.outputs
    }
    variables = [copy for copy in copies.values() if copy.requires_grad]
    with torch.enable_grad():
        values = call_loss(term, {**arrays, **copies})
    is_double = any(copy.dtype == torch.float64 for copy in copies.values())
    dtype = torch.float64 if is_double else torch.float32
    cast = f"{str(dtype)[6:]}: cast it, with to({dtype})"
    message = parts_problem(term, values, Tensor, "a tensor", {torch.float32, dtype}, cast)
    if message is not None or not variables:
        return message and f"{term.where}: {message}"
    loss = values[term.minimized]
    if not loss.requires_grad:
        is_constant = training and term.spec.weight != 0 and bool(loss.any())
        return f"{term.where}: {NO_GRADIENT}" if is_constant else None

    def gradients(scale: float) -> list[Tensor]:
        found = torch.autograd.grad(
            loss, variables, torch.full_like(loss, scale), retain_graph=True, allow_unused=True
        )
        return [each for each in found if each is not None]

    pairs = [(one, four) for one, four in zip(gradients(1.0), gradients(4.0)) if one.isfinite().all()]
    if stock or all(_is_near(four, 4 * one) for one, four in pairs):
        return None
    same = (
        "the same gradient"
        if all(_is_near(*pair) for pair in pairs)
        else "one that is not four times as large"
    )
    return (
        f"{term.where}: {function_name(term.spec.fn)} ignores its weight: an incoming gradient four times as "
        f"large gave {same}, so weights and normalisation have no effect; "
        "multiply by grad_output in the backward() of its autograd.Function"
    )


def _is_near(gradient: Tensor, other: Tensor) -> bool:
    return torch.allclose(gradient, other, rtol=1e-3, atol=1e-12)


def _shown(ref: Ref, arrays: Mapping[Ref, Any]) -> str:
    kind = "output" if ref.space == OUTPUTS else "label"
    return f'the {kind} "{ref.name}" is {describe.array(arrays[ref])}'
