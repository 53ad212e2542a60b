"""Random numbers from torch's generator for the device of `like`; MXNet draws other numbers."""

from __future__ import annotations

import torch

from ..attributes import Ints, Tensor
from .creation import sizes


def random_uniform(
    *,
    like: Tensor,
    low: float = 0.0,
    high: float = 1.0,
    shape: Ints = (1,),
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return numbers between two bounds."""
    return torch.empty(sizes(shape), dtype=dtype, device=like.device).uniform_(low, high)


def random_normal(
    *,
    like: Tensor,
    loc: float = 0.0,
    scale: float = 1.0,
    shape: Ints = (1,),
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return normally distributed numbers with a mean and a standard deviation."""
    return torch.empty(sizes(shape), dtype=dtype, device=like.device).normal_(loc, scale)


def random_uniform_like(x: Tensor, *, low: float = 0.0, high: float = 1.0) -> Tensor:
    """Return numbers between two bounds in the shape and type of `x`."""
    return torch.empty_like(x).uniform_(low, high)


def random_normal_like(x: Tensor, *, loc: float = 0.0, scale: float = 1.0) -> Tensor:
    """Return normally distributed numbers in the shape and type of `x`."""
    return torch.empty_like(x).normal_(loc, scale)


OPERATORS = {
    "_random_uniform": random_uniform,
    "_random_normal": random_normal,
    "_random_uniform_like": random_uniform_like,
    "_random_normal_like": random_normal_like,
}
