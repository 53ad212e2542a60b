"""Convolutions, along one to three axes, channels first."""

from __future__ import annotations

from typing import Optional

import torch.nn.functional as F

from ..attributes import Ints, Layout, Tensor


def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Optional[Tensor] = None,
    *,
    kernel: Ints,
    num_filter: int,
    stride: Ints = (),
    dilate: Ints = (),
    pad: Ints = (),
    num_group: int = 1,
    no_bias: bool = False,
    layout: Layout = None,
) -> Tensor:
    """Convolve."""
    function = (F.conv1d, F.conv2d, F.conv3d)[len(kernel) - 1]
    return function(x, weight, bias, stride or 1, pad or 0, dilate or 1, num_group)


def deconvolution(
    x: Tensor,
    weight: Tensor,
    bias: Optional[Tensor] = None,
    *,
    kernel: Ints,
    num_filter: int,
    stride: Ints = (),
    dilate: Ints = (),
    pad: Ints = (),
    adj: Ints = (),
    target_shape: Ints = (),
    num_group: int = 1,
    no_bias: bool = True,
    layout: Layout = None,
) -> Tensor:
    """Return the transposed convolution; `target_shape` replaces `pad` and `adj`."""
    axes = len(kernel)
    stride, dilate = stride or (1,) * axes, dilate or (1,) * axes
    pad, adj = pad or (0,) * axes, adj or (0,) * axes
    if any(target_shape):
        sizes = zip(x.shape[2:], kernel, stride, dilate, target_shape)
        surplus = [s * (size - 1) + d * (k - 1) + 1 - target for size, k, s, d, target in sizes]
        pad, adj = tuple((n + 1) // 2 for n in surplus), tuple(n % 2 for n in surplus)
    function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[axes - 1]
    return function(x, weight, bias, stride, pad, adj, num_group, dilate)


OPERATORS = {"Convolution": convolution, "Deconvolution": deconvolution}
