"""Normalisation, activations, attention."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F

from ..attributes import Ints, Tensor
from .elementwise import as_float32

# ---- Normalisation by the statistics of batches, samples or channels


def batch_norm(
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    *,
    training: bool,
    eps: float = 1e-3,
    momentum: float = 0.9,
    fix_gamma: bool = True,
    use_global_stats: bool = False,
    axis: int = 1,
) -> Tensor:
    """Normalise channels; training updates the running statistics.

    For the running variance, MXNet divides by n, but torch by n - 1. So torch updates n / (n - 1) times the
    running variance. MXNet updates the statistics in the backward pass, and so not at all if no gradient
    flows.
    """
    weight = None if fix_gamma else gamma
    x = _moved(x, axis, 1)
    if not training or use_global_stats:
        return _moved(F.batch_norm(x, running_mean, running_var, weight, beta, eps=eps), 1, axis)
    values = x.numel() // x.shape[1]  # of a channel
    learns = any(each.requires_grad for each in (x, gamma, beta))
    share = as_float32(1 - as_float32(momentum))  # MXNet's momentum is a float32
    if values < 2:
        y = _norm_of_one_value(x, weight, beta)
        if learns:
            with torch.no_grad():
                running_mean.lerp_(x.reshape(running_mean.shape).to(running_mean.dtype), share)
                running_var.mul_(1 - share)
    elif learns:
        with torch.no_grad():
            running_var.mul_(values / (values - 1))
        # `.data`, because the backward pass, which does not read the variance, would not let it change
        y = F.batch_norm(x, running_mean, running_var.data, weight, beta, True, share, eps)
        with torch.no_grad():
            running_var.mul_((values - 1) / values)
    else:
        y = F.batch_norm(x, None, None, weight, beta, True, eps=eps)
    return _moved(y, 1, axis)


def _moved(x: Tensor, old: int, new: int) -> Tensor:
    """Return a tensor with an axis moved; where nothing moves, torch would record an operator too."""
    return x if old == new else x.movedim(old, new)


def _norm_of_one_value(x: Tensor, gamma: Tensor | None, beta: Tensor) -> Tensor:
    """Normalise channels that have a single value, equal to its mean; torch refuses most of these cases."""
    shape = (1, -1, *[1] * (x.ndim - 2))
    scaled = x - x if gamma is None else (x - x) * gamma.reshape(shape)
    return (scaled + beta.reshape(shape)).to(x.dtype)


def layer_norm(
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
    *,
    axis: int = -1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise along one axis."""
    x = _moved(x, axis, -1)
    return _moved(F.layer_norm(x, x.shape[-1:], gamma, beta, eps), -1, axis)


def group_norm(
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
    *,
    num_groups: int = 1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise groups of channels in each sample; a group has one scale and one shift."""
    if math.prod(x.shape[1:]) == num_groups:
        return _norm_of_one_value(x, gamma, beta)
    weight, bias = (each.repeat_interleave(x.shape[1] // num_groups) for each in (gamma, beta))
    return F.group_norm(x, num_groups, weight, bias, eps)


def instance_norm(x: Tensor, gamma: Tensor, beta: Tensor, *, eps: float = 1e-3) -> Tensor:
    """Normalise each channel of each sample."""
    if math.prod(x.shape[2:]) == 1:
        return _norm_of_one_value(x, gamma, beta)
    return F.instance_norm(x, None, None, gamma, beta, True, 0.0, eps)


def l2_normalization(
    x: Tensor, *, eps: float = 1e-10, mode: Literal["instance", "channel", "spatial"] = "instance"
) -> Tensor:
    """Divide by the square root of the sum of squares of each sample, pixel or channel."""
    axes = {"instance": range(1, x.ndim), "channel": [1], "spatial": range(2, x.ndim)}[mode]
    return x / torch.sqrt(x.square().sum(list(axes), keepdim=True) + eps)


# ---- Activations, softmax and dropout


def activation(x: Tensor, *, act_type: Literal["relu", "sigmoid", "tanh", "softrelu", "softsign"]) -> Tensor:
    """Apply an activation."""
    if act_type in ("softrelu", "softsign"):
        return (F.softplus if act_type == "softrelu" else F.softsign)(x)
    return {"relu": torch.relu, "sigmoid": torch.sigmoid, "tanh": torch.tanh}[act_type](x)


def leaky_relu(
    x: Tensor,
    gamma: Tensor | None = None,
    *,
    act_type: Literal["leaky", "prelu", "elu", "selu", "gelu"] = "leaky",
    slope: float = 0.25,
) -> Tensor:
    """Apply an activation with a slope below zero, which may be learned."""
    if gamma is not None:
        if gamma.ndim == 1:
            gamma = gamma.reshape(1, -1, *[1] * (x.ndim - 2))
        return torch.where(x > 0, x, x * gamma)
    if act_type in ("leaky", "elu"):
        return (F.leaky_relu if act_type == "leaky" else F.elu)(x, slope)
    return (F.selu if act_type == "selu" else F.gelu)(x)


def softmax(
    x: Tensor,
    length: Tensor | None = None,
    *,
    axis: int = -1,
    temperature: float | None = None,
    use_length: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Return the softmax along an axis; with lengths, over the first `length` elements only."""
    x = x if temperature is None else x / temperature
    if length is None:
        return x.softmax(axis, dtype=dtype)
    shape = [-1 if at == axis % x.ndim else 1 for at in range(x.ndim)]
    is_behind = torch.arange(x.shape[axis], device=x.device).reshape(shape) >= length.unsqueeze(axis)
    return x.masked_fill(is_behind, -math.inf).softmax(axis, dtype=dtype).masked_fill(is_behind, 0)


def log_softmax(
    x: Tensor,
    *,
    axis: int = -1,
    temperature: float | None = None,
    use_length: Literal[False] = False,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Return the logarithm of the softmax along an axis."""
    return (x if temperature is None else x / temperature).log_softmax(axis, dtype=dtype)


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


# ---- Attention with several heads, whose projections are side by side: (T, N, heads · parts · C)


def heads_of(x: Tensor, heads: int) -> tuple[Tensor, ...]:
    """Return queries, keys and values, each of shape (N · heads, T, C)."""
    steps, samples = x.shape[:2]
    return tuple(x.reshape(steps, samples * heads, 3, -1).transpose(0, 1).unbind(2))


def selfatt_qk(x: Tensor, *, heads: int) -> Tensor:
    """Return how much each step attends to each other: queries · keys / the square root of their size."""
    queries, keys, _ = heads_of(x, heads)
    return torch.bmm(queries / math.sqrt(queries.shape[-1]), keys.mT)


def selfatt_valatt(x: Tensor, weights: Tensor, *, heads: int) -> Tensor:
    """Return the weighted sums of values, the heads side by side: (T, N, heads · C)."""
    sums = torch.bmm(weights, heads_of(x, heads)[2]).transpose(0, 1)
    return sums.reshape(sums.shape[0], sums.shape[1] // heads, -1)


OPERATORS: dict[str, Callable[..., Any]] = {
    "BatchNorm": batch_norm,
    "_contrib_SyncBatchNorm": batch_norm,
    "LayerNorm": layer_norm,
    "GroupNorm": group_norm,
    "InstanceNorm": instance_norm,
    "L2Normalization": l2_normalization,
    "Activation": activation,
    "LeakyReLU": leaky_relu,
    "softmax": softmax,
    "log_softmax": log_softmax,
    "Dropout": dropout,
    "_contrib_interleaved_matmul_selfatt_qk": selfatt_qk,
    "_contrib_interleaved_matmul_selfatt_valatt": selfatt_valatt,
}
