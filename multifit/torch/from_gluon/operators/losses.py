"""Operators of losses, and on sequences of several lengths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch

from ..attributes import Tensor

OPERATORS: dict[str, Callable[..., Any]] = {}
"""By the names that MXNet writes into a symbol."""


# ---- MXNet's oldest losses: they return a prediction, but their gradient is that of a loss


Normalization = Literal["null", "batch", "valid"]


class Head(torch.autograd.Function):
    """A value with a given gradient, which ignores the gradient that arrives."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, value: Tensor, gradient: Tensor) -> Tensor:
        """Return the value."""
        ctx.save_for_backward(gradient)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, None, None]:
        """Return the given gradient."""
        return ctx.saved_tensors[0], None, None


def softmax_output(
    x: Tensor,
    label: Tensor,
    *,
    grad_scale: float = 1.0,
    ignore_label: float = -1.0,
    multi_output: bool = False,
    use_ignore: bool = False,
    preserve_shape: bool = False,
    normalization: Normalization = "null",
    out_grad: Literal[False, 0] = False,
    smooth_alpha: Literal[0] = 0,
) -> Tensor:
    """Return the softmax; the gradient is that of the cross entropy. Labels are classes or probabilities."""
    if x.ndim > 2 and label.shape != x.shape and not (multi_output or preserve_shape):
        raise ValueError("SoftmaxOutput of more than two axes needs multi_output or preserve_shape")
    axis = 1 if multi_output else -1
    value = x.detach().softmax(axis)
    if label.shape == x.shape:
        return Head.apply(x, value, (value - label) * grad_scale)
    label = label.reshape(value.select(axis, 0).shape)
    classes = torch.arange(value.shape[axis], device=x.device)
    is_class = (label.long().unsqueeze(-1) == classes).movedim(-1, axis)
    is_valid = label != ignore_label
    gradient = value - is_class.to(x.dtype)
    if use_ignore:
        gradient = gradient * is_valid.unsqueeze(axis)
    divisor: Any = {"null": 1, "batch": label.shape[0] if multi_output else label.numel()}.get(normalization)
    if divisor is None:
        divisor = is_valid.sum().clamp(min=1)
    elif multi_output:
        divisor *= label[0].numel()
    return Head.apply(x, value, gradient * grad_scale / divisor)


def regression_output(x: Tensor, label: Tensor, *, operator: str, grad_scale: float = 1.0) -> Tensor:
    """Return `x`, or its sigmoid if the operator is logistic.

    The gradient is that of half the squared error, the absolute error or the binary cross entropy, divided by
    the number of outputs of a sample.
    """
    value = torch.sigmoid(x.detach()) if operator == "LogisticRegressionOutput" else x.detach()
    gradient = value - label.reshape(x.shape)
    if operator == "MAERegressionOutput":
        gradient = torch.sign(gradient)
    return Head.apply(x, value, gradient * (grad_scale / max(1, x.numel() // x.shape[0])))


OPERATORS |= {
    "SoftmaxOutput": softmax_output,
    **{f"{kind}RegressionOutput": regression_output for kind in ("Linear", "Logistic", "MAE")},
}


# ---- Operators on sequences of different lengths, with time along axis 0 or 1


def sequence_mask(
    x: Tensor,
    length: Tensor | None = None,
    *,
    use_sequence_length: bool = False,
    value: float = 0.0,
    axis: int = 0,
) -> Tensor:
    """Replace the elements after each sequence's end by a value."""
    if length is None or not use_sequence_length:
        return x
    steps = torch.arange(x.shape[axis], device=x.device)
    is_behind = steps.unsqueeze(1 - axis) >= length.long().unsqueeze(axis)
    return x.masked_fill(is_behind.reshape(*is_behind.shape, *[1] * (x.ndim - 2)), value)


def sequence_reverse(
    x: Tensor, length: Tensor | None = None, *, use_sequence_length: bool = False, axis: Literal[0] = 0
) -> Tensor:
    """Reverse each sequence, and leave the elements after its end in place."""
    if length is None or not use_sequence_length:
        return x.flip(0)
    steps, length = torch.arange(x.shape[0], device=x.device).unsqueeze(1), length.long()
    index = torch.where(steps < length, length - 1 - steps, steps)
    return x.gather(0, index.reshape(*index.shape, *[1] * (x.ndim - 2)).expand(x.shape))


def sequence_last(
    x: Tensor, length: Tensor | None = None, *, use_sequence_length: bool = False, axis: int = 0
) -> Tensor:
    """Return each sequence's last element."""
    x = x.transpose(0, axis)
    if length is None or not use_sequence_length:
        return x[-1]
    return x[length.long() - 1, torch.arange(x.shape[1], device=x.device)]


def ctc_loss(
    x: Tensor,
    label: Tensor,
    *lengths: Tensor,
    use_data_lengths: bool = False,
    use_label_lengths: bool = False,
    blank_label: Literal["first", "last"] = "first",
) -> Tensor:
    """Return minus the logarithm of each label's probability; 0 if the scores have too few steps for it.

    Without lengths, a label ends before its first 0 if the blank is the first class, else before its first
    -1.
    """
    steps, batch, classes = x.shape
    blank, end = (0, 0) if blank_label == "first" else (classes - 1, -1)
    lengths_of_labels = lengths[-1] if use_label_lengths else (label != end).cumprod(1).sum(1)
    lengths_of_data = lengths[0] if use_data_lengths else torch.full((batch,), steps, device=x.device)
    return torch.nn.functional.ctc_loss(
        x.log_softmax(-1),
        label.long(),
        lengths_of_data.long(),
        lengths_of_labels.long(),
        blank,
        reduction="none",
        zero_infinity=True,
    )


OPERATORS |= {
    "CTCLoss": ctc_loss,
    "SequenceMask": sequence_mask,
    "SequenceReverse": sequence_reverse,
    "SequenceLast": sequence_last,
}
