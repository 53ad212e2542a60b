"""Pooling, along one to three axes, channels first."""

from __future__ import annotations

import math
from typing import Literal, Optional

import torch
import torch.nn.functional as F

from ..attributes import Ints, Layout, Tensor
from .unary import cbrt


def pooling(
    x: Tensor,
    *,
    kernel: Ints = (),
    pool_type: Literal["max", "avg", "sum", "lp"] = "max",
    global_pool: bool = False,
    pooling_convention: Literal["valid", "full"] = "valid",
    stride: Ints = (),
    pad: Ints = (),
    p_value: Literal[None, 1, 2, 3] = None,
    count_include_pad: Optional[bool] = True,
    layout: Layout = None,
) -> Tensor:
    """Return the maximum, mean, sum or norm of each window; norms of odd powers keep the signs.

    With the convention "full", windows may extend beyond the padded map. Means count the padding, unless
    `count_include_pad` is false, but never what is beyond it.
    """
    if global_pool:
        kernel, stride, pad = tuple(x.shape[2:]), (), ()
    stride, pad = stride or (1,) * len(kernel), pad or (0,) * len(kernel)
    beyond = beyond_pad(x, kernel, stride, pad) if pooling_convention == "full" else (0,) * len(kernel)
    count_pad = count_include_pad is not False
    if pool_type in ("max", "avg") and not any(beyond) and all(2 * p <= k for p, k in zip(pad, kernel)):
        return plain_pooling(x, pool_type, kernel, stride, pad, count_pad)
    if pool_type == "max":
        return plain_pooling(padded(x, pad, beyond, torch.finfo(x.dtype).min), "max", kernel, stride)
    if pool_type == "lp":
        power = p_value or 2
        powers = window_sums(padded(x**power, pad, beyond, 0.0), kernel, stride)
        return cbrt(powers) if power == 3 else powers ** (1 / power)
    total = window_sums(padded(x, pad, beyond, 0.0), kernel, stride)
    if pool_type == "sum":
        return total
    none = (0,) * len(kernel)
    counted = padded(x.new_ones(1, 1, *x.shape[2:]), pad, none, 1.0 if count_pad else 0.0)
    counted = window_sums(padded(counted, none, beyond, 0.0), kernel, stride)
    return total / counted.clamp(min=1)


def plain_pooling(
    x: Tensor, kind: str, kernel: Ints, stride: Ints, pad: Ints | int = 0, count_pad: bool = True
) -> Tensor:
    """Pool as torch does."""
    if kind == "max":
        return (F.max_pool1d, F.max_pool2d, F.max_pool3d)[len(kernel) - 1](x, kernel, stride, pad)
    function = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[len(kernel) - 1]
    return function(x, kernel, stride, pad, count_include_pad=count_pad)


def beyond_pad(x: Tensor, kernel: Ints, stride: Ints, pad: Ints) -> Ints:
    """Return how far the last window of each axis extends beyond the padded map."""
    surplus = []
    for size, k, s, p in zip(x.shape[2:], kernel, stride, pad):
        windows = -(-(size + 2 * p - k) // s) + 1
        surplus.append(max(0, (windows - 1) * s + k - size - 2 * p))
    return tuple(surplus)


def padded(x: Tensor, pad: Ints, beyond: Ints, value: float) -> Tensor:
    """Pad the maps with a value."""
    widths = [n for p, b in reversed(list(zip(pad, beyond))) for n in (p, p + b)]
    return F.pad(x, widths, value=value) if any(widths) else x


def window_sums(x: Tensor, kernel: Ints, stride: Ints) -> Tensor:
    """Return the sum of each window."""
    return plain_pooling(x, "avg", kernel, stride) * math.prod(kernel)


def adaptive_avg_pool(x: Tensor, *, output_size: Ints = (1,)) -> Tensor:
    """Return the means of windows, one for each pixel of the output."""
    return F.adaptive_avg_pool2d(x, output_size * 2 if len(output_size) == 1 else output_size)


OPERATORS = {"Pooling": pooling, "_contrib_AdaptiveAvgPooling2D": adaptive_avg_pool}
