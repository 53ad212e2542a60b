"""Operators that read by index, and that make tensors."""

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F

from ..attributes import Ints, Tensor
from .elementwise import number

# ---- Operators that look up elements. Indices may be floats, which are truncated


Mode = Literal["clip"]


def clipped(index: Tensor, size: int) -> Tensor:
    """Return indices within an axis: indices outside are moved to its ends."""
    return index.long().clamp(0, size - 1)


def pick(x: Tensor, index: Tensor, *, axis: int = -1, keepdims: bool = False, mode: Mode = "clip") -> Tensor:
    """Return one element along an axis for each index; raises ValueError if their shapes do not fit."""
    places = clipped(index, x.shape[axis])
    places = places if places.ndim == x.ndim else places.unsqueeze(axis)
    if places.shape != x.narrow(axis, 0, 1).shape:  # gather would leave out what has no index
        found = f"{tuple(index.shape)} for {tuple(x.shape)}"
        raise ValueError(f"pick takes one index for each row along axis {axis}, not indices {found}")
    picked = x.gather(axis, places)
    return picked if keepdims or x.ndim == 1 else picked.squeeze(axis)


def take(x: Tensor, index: Tensor, *, axis: int = 0, mode: Mode = "clip") -> Tensor:
    """Return the slices of an axis at the indices; the axis is replaced by the shape of the indices."""
    axis = axis % x.ndim
    slices = x.index_select(axis, clipped(index, x.shape[axis]).flatten())
    return slices.reshape(*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])


def embedding(
    index: Tensor,
    weight: Tensor,
    *,
    input_dim: int,
    output_dim: int,
    dtype: torch.dtype | None = None,
    sparse_grad: Literal[False, 0] = False,
) -> Tensor:
    """Return the rows of `weight` at the indices."""
    return F.embedding(clipped(index, input_dim), weight)


def one_hot(
    index: Tensor,
    *,
    depth: int,
    on_value: float = 1.0,
    off_value: float = 0.0,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return `on_value` at each index along a new last axis, else `off_value`; ignore indices outside."""
    index = index.long() if index.is_floating_point() else index
    is_on = index.unsqueeze(-1) == torch.arange(depth, device=index.device)
    if (on_value, off_value) == (1, 0):
        return is_on.to(dtype)
    on, off = (torch.full((), each, dtype=dtype, device=index.device) for each in (on_value, off_value))
    return torch.where(is_on, on, off)


def gather_nd(x: Tensor, index: Tensor) -> Tensor:
    """Return the elements or slices at indices (axes, ...)."""
    return x[tuple(index.long())]


def scatter_add_nd(x: Tensor, index: Tensor, *, shape: Ints) -> Tensor:
    """Return zeros to which the elements or slices of `x` are added at indices (axes, ...)."""
    return x.new_zeros(shape).index_put(tuple(index.long()), x, accumulate=True)


# ---- Operators that make tensors from options or from a shape only, on the device of `like`


def sizes(shape: Ints) -> list[int]:
    """Return a shape in which unknown sizes, which are 0 in MXNet, are 1.

    Gluon's recurrent cells begin with zeros whose batch size is unknown; a single row of zeros is broadcast.
    """
    return [size or 1 for size in shape]


def constant(*, operator: str, like: Tensor, shape: Ints, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return zeros or ones."""
    return getattr(torch, operator.removeprefix("_"))(sizes(shape), dtype=dtype, device=like.device)


def full(*, like: Tensor, shape: Ints, value: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return a tensor filled with one value."""
    return torch.full(sizes(shape), value, dtype=dtype, device=like.device)


def arange(
    *,
    like: Tensor,
    start: float,
    stop: float | None = None,
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
    x: Tensor, *, start: float = 0.0, step: float = 1.0, repeat: int = 1, axis: int | None = None
) -> Tensor:
    """Return numbers in the shape of `x`; with `axis`, as many as that axis has elements."""
    size = x.numel() if axis is None else x.shape[axis]
    places = torch.arange(size, device=x.device).div(repeat, rounding_mode="floor")
    numbers = places.to(x.dtype) * number(x, step) + number(x, start)
    return numbers.reshape(x.shape) if axis is None else numbers


def constant_like(x: Tensor, *, operator: str, dtype: str | None = None) -> Tensor:
    """Return zeros or ones in the shape and type of `x`; MXNet ignores the `dtype`."""
    return getattr(torch, operator)(x)


def shape_array(x: Tensor) -> Tensor:
    """Return the shape, int64."""
    # filled on the device, as a CUDA graph would read the memory of a copied tensor again
    sizes = [torch.full((1,), size, dtype=torch.int64, device=x.device) for size in x.shape]
    return torch.cat(sizes)


def size_array(x: Tensor) -> Tensor:
    """Return the number of elements, int64, of shape (1,)."""
    return torch.full((1,), x.numel(), dtype=torch.int64, device=x.device)


# ---- Random numbers from torch's generator for the device of `like`; MXNet draws other numbers


def random(
    *,
    operator: str,
    like: Tensor,
    low: float = 0.0,
    high: float = 1.0,
    loc: float = 0.0,
    scale: float = 1.0,
    shape: Ints = (1,),
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return numbers between two bounds, or normal ones with a mean and a standard deviation."""
    numbers = torch.empty(sizes(shape), dtype=dtype, device=like.device)
    return numbers.uniform_(low, high) if "uniform" in operator else numbers.normal_(loc, scale)


def random_like(
    x: Tensor, *, operator: str, low: float = 0.0, high: float = 1.0, loc: float = 0.0, scale: float = 1.0
) -> Tensor:
    """Return such numbers in the shape and type of `x`."""
    numbers = torch.empty_like(x)
    return numbers.uniform_(low, high) if "uniform" in operator else numbers.normal_(loc, scale)


OPERATORS: dict[str, Callable[..., Any]] = {
    "pick": pick,
    "take": take,
    "Embedding": embedding,
    "one_hot": one_hot,
    "gather_nd": gather_nd,
    "_backward_gather_nd": scatter_add_nd,
    **dict.fromkeys(("_zeros", "_ones"), constant),
    "_full": full,
    "_arange": arange,
    "_contrib_arange_like": arange_like,
    **dict.fromkeys(("zeros_like", "ones_like"), constant_like),
    "shape_array": shape_array,
    "size_array": size_array,
    **{f"_random_{kind}": random for kind in ("uniform", "normal")},
    **{f"_random_{kind}_like": random_like for kind in ("uniform", "normal")},
}
