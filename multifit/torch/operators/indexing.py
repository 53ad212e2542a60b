"""Operators that look up elements. Indices may be floats, which are truncated."""

from __future__ import annotations

from typing import Literal, Optional

import torch
import torch.nn.functional as F

from ..attributes import Ints, Tensor

Mode = Literal["clip", "wrap"]


def valid_indices(index: Tensor, size: int, mode: Mode) -> Tensor:
    """Return indices within an axis: indices outside are moved to its ends, or wrapped around."""
    index = index.long()
    return index.remainder(size) if mode == "wrap" else index.clamp(0, size - 1)


def pick(x: Tensor, index: Tensor, *, axis: int = -1, keepdims: bool = False, mode: Mode = "clip") -> Tensor:
    """Return one element along an axis for each index."""
    index = valid_indices(index, x.shape[axis], mode)
    picked = x.gather(axis, index if index.ndim == x.ndim else index.unsqueeze(axis))
    return picked if keepdims or x.ndim == 1 else picked.squeeze(axis)


def take(x: Tensor, index: Tensor, *, axis: int = 0, mode: Mode = "clip") -> Tensor:
    """Return the slices of an axis at the indices; the axis is replaced by the shape of the indices."""
    axis = axis % x.ndim
    slices = x.index_select(axis, valid_indices(index, x.shape[axis], mode).flatten())
    return slices.reshape(*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])


def batch_take(x: Tensor, index: Tensor) -> Tensor:
    """Return one element of each row."""
    return x.gather(1, valid_indices(index, x.shape[1], "clip").unsqueeze(1)).squeeze(1)


def embedding(
    index: Tensor,
    weight: Tensor,
    *,
    input_dim: int,
    output_dim: int,
    dtype: Optional[torch.dtype] = None,
    sparse_grad: Literal[False, 0] = False,
) -> Tensor:
    """Return the rows of `weight` at the indices."""
    return F.embedding(valid_indices(index, input_dim, "clip"), weight)


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


def scatter_nd(x: Tensor, index: Tensor, *, shape: Ints) -> Tensor:
    """Return zeros with the elements or slices of `x` at indices (axes, ...)."""
    return x.new_zeros(shape).index_put(tuple(index.long()), x)


def scatter_add_nd(x: Tensor, index: Tensor, *, shape: Ints) -> Tensor:
    """Return the same as `scatter_nd`, but add up elements with the same index."""
    return x.new_zeros(shape).index_put(tuple(index.long()), x, accumulate=True)


OPERATORS = {
    "pick": pick,
    "take": take,
    "batch_take": batch_take,
    "Embedding": embedding,
    "one_hot": one_hot,
    "gather_nd": gather_nd,
    "scatter_nd": scatter_nd,
    "_backward_gather_nd": scatter_add_nd,
}
