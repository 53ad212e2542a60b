"""Activations, softmax and dropout."""

from __future__ import annotations

import math
from typing import Literal, Optional

import torch
import torch.nn.functional as F

from ..attributes import Ints, Tensor


def activation(
    x: Tensor,
    *,
    act_type: Literal["relu", "sigmoid", "tanh", "softrelu", "softsign"],
) -> Tensor:
    """Apply an activation."""
    if act_type in ("softrelu", "softsign"):
        return (F.softplus if act_type == "softrelu" else F.softsign)(x)
    return {"relu": torch.relu, "sigmoid": torch.sigmoid, "tanh": torch.tanh}[act_type](x)


def leaky_relu(
    x: Tensor,
    gamma: Optional[Tensor] = None,
    *,
    act_type: Literal["leaky", "prelu", "elu", "selu", "gelu"] = "leaky",
    slope: float = 0.25,
    lower_bound: float = 0.125,
    upper_bound: float = 0.334,
) -> Tensor:
    """Apply an activation with a slope below zero, which may be learned.

    The bounds are not used: they belong to MXNet's random slopes ("rrelu").
    """
    if gamma is not None:
        if gamma.ndim == 1:
            gamma = gamma.reshape(1, -1, *[1] * (x.ndim - 2))
        return torch.where(x > 0, x, x * gamma)
    if act_type in ("leaky", "elu"):
        return (F.leaky_relu if act_type == "leaky" else F.elu)(x, slope)
    return (F.selu if act_type == "selu" else F.gelu)(x)


def softmax(
    x: Tensor,
    length: Optional[Tensor] = None,
    *,
    axis: int = -1,
    temperature: Optional[float] = None,
    use_length: bool = False,
    dtype: Optional[torch.dtype] = None,
) -> Tensor:
    """Return the softmax along an axis; with lengths, over the first `length` elements only."""
    x = x if temperature is None else x / temperature
    if length is None:
        return x.softmax(axis, dtype=dtype)
    steps = torch.arange(x.shape[axis], device=x.device)
    is_behind = steps.reshape([-1 if at == axis % x.ndim else 1 for at in range(x.ndim)]) >= length.unsqueeze(
        axis
    )
    return x.masked_fill(is_behind, -math.inf).softmax(axis, dtype=dtype).masked_fill(is_behind, 0)


def log_softmax(
    x: Tensor,
    *,
    axis: int = -1,
    temperature: Optional[float] = None,
    use_length: Literal[False] = False,
    dtype: Optional[torch.dtype] = None,
) -> Tensor:
    """Return the logarithm of the softmax along an axis."""
    return (x if temperature is None else x / temperature).log_softmax(axis, dtype=dtype)


def softmin(
    x: Tensor,
    *,
    axis: int = -1,
    temperature: Optional[float] = None,
    use_length: Literal[False] = False,
    dtype: Optional[torch.dtype] = None,
) -> Tensor:
    """Return the softmax of the negative."""
    return softmax(-x, axis=axis, temperature=temperature, dtype=dtype)


def softmax_activation(x: Tensor, *, mode: Literal["instance", "channel"] = "instance") -> Tensor:
    """Return the softmax along the last axis, or over the channels."""
    return x.softmax(1 if mode == "channel" else -1)


def dropout(
    x: Tensor,
    *,
    training: bool,
    p: float = 0.5,
    mode: Literal["training", "always"] = "training",
    axes: Ints = (),
) -> Tensor:
    """Drop elements, and scale up the rest; elements along `axes` are dropped together."""
    if p == 0 or not (training or mode == "always"):
        return x
    if not axes:
        return F.dropout(x, p)
    shape = [1 if at in axes else size for at, size in enumerate(x.shape)]
    return x * F.dropout(x.new_ones(shape), p)


OPERATORS = {
    "Activation": activation,
    "LeakyReLU": leaky_relu,
    "softmax": softmax,
    "log_softmax": log_softmax,
    "softmin": softmin,
    "SoftmaxActivation": softmax_activation,
    "Dropout": dropout,
}
