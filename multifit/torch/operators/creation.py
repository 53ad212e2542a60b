"""Operators that make tensors from options or from a shape only, on the device of `like`."""

from __future__ import annotations

import math
from typing import Optional

import torch

from ..attributes import Ints, Tensor
from .integers import number


def sizes(shape: Ints) -> list[int]:
    """Return a shape in which unknown sizes, which are 0 in MXNet, are 1.

    Gluon's recurrent cells begin with zeros whose batch size is unknown; a single row of zeros is broadcast.
    """
    return [size or 1 for size in shape]


def zeros(*, like: Tensor, shape: Ints, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return zeros."""
    return torch.zeros(sizes(shape), dtype=dtype, device=like.device)


def ones(*, like: Tensor, shape: Ints, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return ones."""
    return torch.ones(sizes(shape), dtype=dtype, device=like.device)


def full(*, like: Tensor, shape: Ints, value: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return a tensor filled with one value."""
    return torch.full(sizes(shape), value, dtype=dtype, device=like.device)


def arange(
    *,
    like: Tensor,
    start: float,
    stop: Optional[float] = None,
    step: float = 1.0,
    repeat: int = 1,
    infer_range: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return numbers from `start` up to `stop`, or from 0 up to `start`, each of them repeated."""
    start, stop = (0.0, start) if stop is None else (start, stop)
    places = torch.arange(max(0, math.ceil((stop - start) / step)), dtype=dtype, device=like.device)
    return (places * number(places, step) + number(places, start)).repeat_interleave(repeat)


def arange_like(
    x: Tensor, *, start: float = 0.0, step: float = 1.0, repeat: int = 1, axis: Optional[int] = None
) -> Tensor:
    """Return numbers in the shape of `x`; with `axis`, as many as that axis has elements."""
    size = x.numel() if axis is None else x.shape[axis]
    places = torch.arange(size, device=x.device).div(repeat, rounding_mode="floor")
    numbers = places.to(x.dtype) * number(x, step) + number(x, start)
    return numbers.reshape(x.shape) if axis is None else numbers


def linspace(
    *,
    like: Tensor,
    start: float,
    stop: float,
    num: int,
    endpoint: bool = True,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return `num` numbers from `start` to `stop`, which is left out without `endpoint`."""
    step = (stop - start) / max(1, num - endpoint)
    places = torch.arange(num, dtype=torch.float64, device=like.device)
    return (start + places * step).to(dtype)


def eye(*, like: Tensor, N: int, M: int = 0, k: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return N rows with ones on a diagonal, the `k`-th above the main one."""
    rows, columns = (torch.arange(size, device=like.device) for size in (N, M or N))
    return (columns - rows[:, None] == k).to(dtype)


def zeros_like(x: Tensor, *, dtype: Optional[str] = None) -> Tensor:
    """Return zeros in the shape and type of `x`; MXNet ignores the `dtype`."""
    return torch.zeros_like(x)


def ones_like(x: Tensor, *, dtype: Optional[str] = None) -> Tensor:
    """Return ones in the shape and type of `x`; MXNet ignores the `dtype`."""
    return torch.ones_like(x)


def shape_array(x: Tensor) -> Tensor:
    """Return the shape, int64."""
    # filled on the device, as a CUDA graph would read the memory of a copied tensor again
    sizes = [torch.full((1,), size, dtype=torch.int64, device=x.device) for size in x.shape]
    return torch.cat(sizes)


def size_array(x: Tensor) -> Tensor:
    """Return the number of elements, int64, of shape (1,)."""
    return torch.full((1,), x.numel(), dtype=torch.int64, device=x.device)


OPERATORS = {
    "_zeros": zeros,
    "_ones": ones,
    "_full": full,
    "_arange": arange,
    "_linspace": linspace,
    "_eye": eye,
    "_contrib_arange_like": arange_like,
    "zeros_like": zeros_like,
    "ones_like": ones_like,
    "shape_array": shape_array,
    "size_array": size_array,
}
