"""Normalisation by the statistics of batches, samples or channels."""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F

from ..attributes import Tensor


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
    output_mean_var: Literal[False] = False,
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
    share = _single(1 - _single(momentum))  # MXNet's momentum is a float32
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


def _single(number: float) -> float:
    """Round to float32 without an array: reading one would split a graph that torch captures."""
    mantissa, exponent = math.frexp(number)
    return math.ldexp(round(mantissa * 2**24), exponent - 24)


def layer_norm(
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
    *,
    axis: int = -1,
    eps: float = 1e-5,
    output_mean_var: Literal[False] = False,
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
    output_mean_var: Literal[False] = False,
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


def lrn(x: Tensor, *, nsize: int, alpha: float = 1e-4, beta: float = 0.75, knorm: float = 2.0) -> Tensor:
    """Divide by a power of the mean square of neighbouring channels."""
    return F.local_response_norm(x, nsize, alpha, beta, knorm)


OPERATORS = {
    "BatchNorm": batch_norm,
    "_contrib_SyncBatchNorm": batch_norm,
    "LayerNorm": layer_norm,
    "GroupNorm": group_norm,
    "InstanceNorm": instance_norm,
    "L2Normalization": l2_normalization,
    "LRN": lrn,
}
