"""Products of matrices."""

from __future__ import annotations

from typing import Literal, Optional

import torch
import torch.nn.functional as F

from ..attributes import Tensor
from .reductions import at_least_1d


def fully_connected(
    x: Tensor,
    weight: Tensor,
    bias: Optional[Tensor] = None,
    *,
    num_hidden: int,
    no_bias: bool = False,
    flatten: bool = True,
) -> Tensor:
    """Return x · weightᵀ + bias; the axes after the first are flattened, or else the last axis is used."""
    if flatten:
        x = x.flatten(1) if x.ndim > 1 else x.unsqueeze(1)
    return F.linear(x, weight, bias)


def dot(
    x: Tensor,
    y: Tensor,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    forward_stype: Literal[None, "default"] = None,
) -> Tensor:
    """Sum over the last axis of `x` and the first axis of `y`.

    If transposed, sum over the first axis of `x`, or the last axis of `y`.
    """
    axes = ([0] if transpose_a else [-1], [-1] if transpose_b else [0])
    return at_least_1d(torch.tensordot(x, y, axes))


def batch_dot(
    x: Tensor,
    y: Tensor,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    forward_stype: Literal[None, "default"] = None,
) -> Tensor:
    """Return the product of each pair of matrices."""
    return torch.matmul(x.mT if transpose_a else x, y.mT if transpose_b else y)


def gemm2(
    x: Tensor,
    y: Tensor,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    alpha: float = 1.0,
    axis: Literal[-2] = -2,
) -> Tensor:
    """Return the product of each pair of matrices, times `alpha`."""
    return torch.matmul(x.mT if transpose_a else x, y.mT if transpose_b else y) * alpha


OPERATORS = {
    "FullyConnected": fully_connected,
    "dot": dot,
    "batch_dot": batch_dot,
    "_linalg_gemm2": gemm2,
}
