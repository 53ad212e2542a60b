"""Operators that reshape, join, split and slice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F

from ..attributes import Bounds, Ints, Tensor

# ---- Operators that change a tensor's shape or the order of its elements


def reshaped(shape: list[int], codes: list[int]) -> list[int]:
    """Return the shape that MXNet's codes mean.

    0 keeps an axis; -1 is the remaining size; -2 keeps all further axes; -3 merges two axes; -4 splits an
    axis into two, whose sizes follow.
    """
    result: list[int] = []
    at, rest = 0, iter(codes)
    for code in rest:
        if code == -2:
            result += shape[at:]
            at = len(shape)
        elif code == -3:
            result.append(shape[at] * shape[at + 1])
            at += 2
        elif code == -4:
            first, second = next(rest), next(rest)
            result += [
                shape[at] // second if first == -1 else first,
                shape[at] // first if second == -1 else second,
            ]
            at += 1
        else:
            result.append(shape[at] if code == 0 else code)
            at += 1
    return result


def reshape(x: Tensor, *, shape: Ints, reverse: bool = False) -> Tensor:
    """Return `x` in the shape that MXNet's codes mean; with `reverse`, they are read from the right."""
    if reverse:
        return x.reshape(reshaped(list(x.shape)[::-1], list(shape)[::-1])[::-1])
    return x.reshape(reshaped(list(x.shape), list(shape)))


def reshape_like(
    x: Tensor,
    y: Tensor,
    *,
    lhs_begin: int | None = None,
    lhs_end: int | None = None,
    rhs_begin: int | None = None,
    rhs_end: int | None = None,
) -> Tensor:
    """Return `x` in the shape of `y`; or replace some axes of `x` by some axes of `y`."""
    begin, end, _ = slice(lhs_begin, lhs_end).indices(x.ndim)
    return x.reshape(*x.shape[:begin], *y.shape[rhs_begin:rhs_end], *x.shape[end:])


def flatten(x: Tensor) -> Tensor:
    """Flatten all axes but the first."""
    return x.reshape(x.shape[0], -1)


def expand_dims(x: Tensor, *, axis: int) -> Tensor:
    """Insert an axis."""
    return x.unsqueeze(axis)


def squeeze(x: Tensor, *, axis: Ints | None = None) -> Tensor:
    """Remove axes of size 1; at least one axis remains."""
    axes = range(x.ndim) if axis is None else [each % x.ndim for each in axis]
    return x.reshape([size for at, size in enumerate(x.shape) if at not in axes or size != 1] or [1])


def transpose(x: Tensor, *, axes: Ints = ()) -> Tensor:
    """Reorder the axes; by default, reverse their order."""
    return x.permute(axes or tuple(range(x.ndim))[::-1])


def swap_axis(x: Tensor, *, dim1: int = 0, dim2: int = 0) -> Tensor:
    """Exchange two axes."""
    return x.transpose(dim1, dim2)


def reverse(x: Tensor, *, axis: Ints) -> Tensor:
    """Reverse the elements along axes."""
    return x.flip(axis)


def broadcast_like(
    x: Tensor, y: Tensor, *, lhs_axes: Ints | None = None, rhs_axes: Ints | None = None
) -> Tensor:
    """Repeat `x` along axes of size 1 to the sizes of `y`."""
    if lhs_axes is None or rhs_axes is None:
        return x.expand(y.shape)
    shape = list(x.shape)
    for own, other in zip(lhs_axes, rhs_axes):
        shape[own] = y.shape[other]
    return x.expand(shape)


def broadcast_to(x: Tensor, *, shape: Ints) -> Tensor:
    """Repeat `x` along axes of size 1; a size of 0 keeps that of `x`."""
    return x.expand([size or own for own, size in zip(x.shape, shape)])


def broadcast_axis(x: Tensor, *, axis: Ints, size: Ints) -> Tensor:
    """Repeat `x` along some axes of size 1."""
    shape = list(x.shape)
    for each, own in zip(axis, size):
        shape[each] = own
    return x.expand(shape)


# ---- Operators that slice and concatenate tensors


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


def slice_axis(x: Tensor, *, axis: int, begin: int = 0, end: int | None = None) -> Tensor:
    """Return the elements from `begin` up to `end` of one axis."""
    return x[(slice(None),) * (axis % x.ndim) + (slice(begin, end),)]


def slice_like(x: Tensor, y: Tensor, *, axes: Ints = ()) -> Tensor:
    """Return the first elements along axes, as many as `y` has."""
    for axis in axes or range(y.ndim):
        x = x.narrow(axis, 0, y.shape[axis])
    return x


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


def repeat(x: Tensor, *, repeats: int, axis: int | None = None) -> Tensor:
    """Repeat each element along an axis; by default, of the flattened tensor."""
    return x.repeat_interleave(repeats, axis)


def pad(
    x: Tensor, *, mode: Literal["constant", "edge", "reflect"], pad_width: Ints, constant_value: float = 0.0
) -> Tensor:
    """Pad each axis but the first two."""
    pairs = list(zip(pad_width[::2], pad_width[1::2]))
    if mode == "constant":
        return F.pad(x, [n for pair in reversed(pairs) for n in pair], mode, constant_value)
    widths = [n for pair in reversed(pairs[2:]) for n in pair]
    return F.pad(x, widths, "replicate" if mode == "edge" else mode)


OPERATORS: dict[str, Callable[..., Any]] = {
    "Reshape": reshape,
    "reshape_like": reshape_like,
    "Flatten": flatten,
    "expand_dims": expand_dims,
    "squeeze": squeeze,
    "transpose": transpose,
    "SwapAxis": swap_axis,
    "reverse": reverse,
    "broadcast_like": broadcast_like,
    "broadcast_to": broadcast_to,
    "broadcast_axis": broadcast_axis,
    "slice": slice_,
    "slice_axis": slice_axis,
    "slice_like": slice_like,
    "Concat": concat,
    "_rnn_param_concat": concat,
    "stack": stack,
    "SliceChannel": split,
    "_split_v2": split_v2,
    "tile": tile,
    "repeat": repeat,
    "Pad": pad,
}
