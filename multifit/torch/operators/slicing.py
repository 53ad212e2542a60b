"""Operators that slice and concatenate tensors."""

from __future__ import annotations

from typing import Literal, Optional

import torch
import torch.nn.functional as F

from ..attributes import Bounds, Ints, Tensor


def slice_(x: Tensor, *, begin: Bounds, end: Bounds, step: Bounds = ()) -> Tensor:
    """Return the elements from `begin` up to `end` of the first axes, backwards for a negative step."""
    for axis, (first, last, stride) in enumerate(zip(begin, end, (*step, *[None] * len(begin)))):
        every = slice(first, last, stride)
        if stride is not None and stride < 0:  # torch does not take negative steps
            x = x.index_select(
                axis, torch.arange(x.shape[axis], device=x.device).flip(0)[_reversed(every, x.shape[axis])]
            )
        else:
            x = x[(slice(None),) * axis + (every,)]
    return x


def _reversed(every: slice, size: int) -> slice:
    """Return the slice of the reversed axis with the same elements as a slice with a negative step."""
    first, last, stride = every.indices(size)
    return slice(size - 1 - first, size - 1 - last, -stride)


def slice_axis(x: Tensor, *, axis: int, begin: int = 0, end: Optional[int] = None) -> Tensor:
    """Return the elements from `begin` up to `end` of one axis."""
    return x[(slice(None),) * (axis % x.ndim) + (slice(begin, end),)]


def slice_like(x: Tensor, y: Tensor, *, axes: Ints = ()) -> Tensor:
    """Return the first elements along axes, as many as `y` has."""
    for axis in axes or range(y.ndim):
        x = x.narrow(axis, 0, y.shape[axis])
    return x


def diag(x: Tensor, *, k: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    """Return the `k`-th diagonal of two axes as a new last axis; of a vector, a matrix that has it."""
    return torch.diag_embed(x, k) if x.ndim == 1 else torch.diagonal(x, k, axis1, axis2)


def concat(*xs: Tensor, dim: int = 1) -> Tensor:
    """Concatenate tensors along an axis."""
    return torch.cat(xs, dim)


def stack(*xs: Tensor, axis: int = 0) -> Tensor:
    """Stack tensors along a new axis."""
    return torch.stack(xs, axis)


def split(x: Tensor, *, num_outputs: int, axis: int = 1, squeeze_axis: bool = False) -> tuple[Tensor, ...]:
    """Split an axis into equal parts."""
    parts = x.split(x.shape[axis] // num_outputs, axis)
    return tuple(part.squeeze(axis) for part in parts) if squeeze_axis else parts


def split_v2(
    x: Tensor, *, indices: Ints = (), axis: int = 0, squeeze_axis: bool = False, sections: int = 0
) -> tuple[Tensor, ...]:
    """Split an axis into equal parts, or into parts that begin at the indices, of which the first is 0."""
    parts = x.tensor_split(sections or indices[1:], axis)
    return tuple(part.squeeze(axis) for part in parts) if squeeze_axis else parts


def tile(x: Tensor, *, reps: Ints) -> Tensor:
    """Repeat the whole tensor along axes."""
    return x.tile(reps)


def repeat(x: Tensor, *, repeats: int, axis: Optional[int] = None) -> Tensor:
    """Repeat each element along an axis; by default, of the flattened tensor."""
    return x.repeat_interleave(repeats, axis)


def pad(
    x: Tensor,
    *,
    mode: Literal["constant", "edge", "reflect"],
    pad_width: Ints,
    constant_value: float = 0.0,
) -> Tensor:
    """Pad each axis but the first two."""
    pairs = list(zip(pad_width[::2], pad_width[1::2]))
    if mode == "constant":
        return F.pad(x, [n for pair in reversed(pairs) for n in pair], mode, constant_value)
    widths = [n for pair in reversed(pairs[2:]) for n in pair]
    return F.pad(x, widths, "replicate" if mode == "edge" else mode)


OPERATORS = {
    "slice": slice_,
    "slice_axis": slice_axis,
    "slice_like": slice_like,
    "diag": diag,
    "Concat": concat,
    "_rnn_param_concat": concat,
    "stack": stack,
    "SliceChannel": split,
    "_split_v2": split_v2,
    "tile": tile,
    "repeat": repeat,
    "Pad": pad,
}
