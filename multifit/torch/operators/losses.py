"""MXNet's oldest losses: they return a prediction, but their gradient is that of a loss."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch

from ..attributes import Tensor

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


def linear_regression_output(x: Tensor, label: Tensor, *, grad_scale: float = 1.0) -> Tensor:
    """Return `x`; the gradient is that of half the squared error."""
    return regression(x, x.detach(), x.detach() - label.reshape(x.shape), grad_scale)


def logistic_regression_output(x: Tensor, label: Tensor, *, grad_scale: float = 1.0) -> Tensor:
    """Return the sigmoid; the gradient is that of the binary cross entropy."""
    value = torch.sigmoid(x.detach())
    return regression(x, value, value - label.reshape(x.shape), grad_scale)


def mae_regression_output(x: Tensor, label: Tensor, *, grad_scale: float = 1.0) -> Tensor:
    """Return `x`; the gradient is that of the absolute error."""
    return regression(x, x.detach(), torch.sign(x.detach() - label.reshape(x.shape)), grad_scale)


def regression(x: Tensor, value: Tensor, gradient: Tensor, grad_scale: float) -> Tensor:
    """Return a value whose gradient is divided by the number of outputs of a sample."""
    return Head.apply(x, value, gradient * (grad_scale / max(1, x.numel() // x.shape[0])))


def make_loss_output(
    x: Tensor, *, grad_scale: float = 1.0, valid_thresh: float = 0.0, normalization: Normalization = "null"
) -> Tensor:
    """Return `x`, a loss whose gradient is constant.

    As in MXNet, all axes but the last count as the batch.
    """
    divisor: Any = math.prod(x.shape[:-1]) if normalization == "batch" else 1
    if normalization == "valid":
        divisor = (x.detach() > valid_thresh).sum().clamp(min=1)
    return Head.apply(x, x.detach(), torch.full_like(x, grad_scale) / divisor)


def make_loss(x: Tensor) -> Tensor:
    """Return `x`, a loss whose gradient is 1."""
    return Head.apply(x, x.detach(), torch.ones_like(x))


OPERATORS = {
    "SoftmaxOutput": softmax_output,
    "LinearRegressionOutput": linear_regression_output,
    "LogisticRegressionOutput": logistic_regression_output,
    "MAERegressionOutput": mae_regression_output,
    "MakeLoss": make_loss_output,
    "make_loss": make_loss,
}
