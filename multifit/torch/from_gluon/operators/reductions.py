"""Operators that reduce axes, and that sort."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch

from ..attributes import Ints, Tensor
from .elementwise import as_float, of_type

# ---- Reductions. MXNet has no tensors without axes: a result of one number has the shape (1,)


def reduced_axes(x: Tensor, axis: Ints | None, exclude: bool = False) -> list[int]:
    """Return the axes to reduce: those given, or all if none are; with `exclude`, all others."""
    listed = [each % x.ndim for each in axis or ()]
    if exclude:
        return [each for each in range(x.ndim) if each not in listed]
    return listed or list(range(x.ndim))


def at_least_1d(x: Tensor) -> Tensor:
    """Return a tensor without axes with one axis."""
    return x.reshape(1) if x.ndim == 0 else x


def sum_(x: Tensor, *, axis: Ints | None = None, keepdims: bool = False, exclude: bool = False) -> Tensor:
    """Return sums."""
    axes = reduced_axes(x, axis, exclude)
    return at_least_1d(x.sum(axes, keepdim=keepdims, dtype=x.dtype)) if axes else x


def mean(x: Tensor, *, axis: Ints | None = None, keepdims: bool = False, exclude: bool = False) -> Tensor:
    """Return means."""
    axes = reduced_axes(x, axis, exclude)
    return of_type(at_least_1d(as_float(x).mean(axes, keepdim=keepdims)), x) if axes else x


def prod(x: Tensor, *, axis: Ints | None = None, keepdims: bool = False, exclude: bool = False) -> Tensor:
    """Return products."""
    for each in sorted(reduced_axes(x, axis, exclude), reverse=True):
        x = x.prod(each, keepdim=keepdims, dtype=x.dtype)
    return at_least_1d(x)


class ReducedExtreme(torch.autograd.Function):
    """The largest or smallest elements; all elements equal to one get its whole gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, axes: list[int], largest: bool) -> Tensor:
        """Reduce, and keep the axes."""
        extreme = (torch.amax if largest else torch.amin)(x, axes, keepdim=True)
        ctx.save_for_backward(x == extreme)
        return extreme

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """Give the gradient to all elements that are equal."""
        (is_extreme,) = ctx.saved_tensors
        return gradient * is_extreme, None, None


def extreme(
    x: Tensor, *, operator: str, axis: Ints | None = None, keepdims: bool = False, exclude: bool = False
) -> Tensor:
    """Return the largest elements, or with the operator "min" the smallest ones."""
    axes, largest = reduced_axes(x, axis, exclude), operator == "max"
    if not axes:
        return x
    if x.requires_grad:
        reduced = ReducedExtreme.apply(x, axes, largest)
    else:
        reduced = (torch.amax if largest else torch.amin)(x, axes, keepdim=True)
    if keepdims:
        return reduced
    return reduced.reshape([size for at, size in enumerate(x.shape) if at not in axes] or [1])


def norm(
    x: Tensor,
    *,
    ord: Literal[1, 2] = 2,
    axis: Ints | None = None,
    keepdims: bool = False,
) -> Tensor:
    """Return sums of absolute values, or square roots of sums of squares."""
    axes = reduced_axes(x, axis)
    return of_type(at_least_1d(torch.linalg.vector_norm(as_float(x), ord, axes, keepdims)), x)


def arg_extreme(x: Tensor, *, operator: str, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Return the index of the first of the largest or smallest elements, in the type of `x`."""
    return at_least_1d(getattr(x, operator)(axis, keepdim=keepdims)).to(x.dtype)


# ---- Sorting. Equal elements keep their order; indices are floats unless `dtype` says otherwise


def argsort(
    x: Tensor, *, axis: int | None = -1, is_ascend: bool = True, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Return the indices that sort the elements."""
    x, axis = (x.flatten(), 0) if axis is None else (x, axis)
    return x.argsort(dim=axis, descending=not is_ascend, stable=True).to(dtype)


def sort(x: Tensor, *, axis: int | None = -1, is_ascend: bool = True) -> Tensor:
    """Return the elements in order."""
    x, axis = (x.flatten(), 0) if axis is None else (x, axis)
    return x.sort(dim=axis, descending=not is_ascend, stable=True)[0]


def topk(
    x: Tensor,
    *,
    axis: int | None = -1,
    k: int = 1,
    ret_typ: Literal["value", "indices", "both"] = "indices",
    is_ascend: bool = False,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, ...]:
    """Return the largest or smallest `k` elements along an axis: values or indices; all with ``k=0``."""
    x, axis = (x.flatten(), 0) if axis is None else (x, axis)
    count = k if 0 < k < x.shape[axis] else x.shape[axis]
    values, indices = x.sort(dim=axis, descending=not is_ascend, stable=True)
    values, indices = values.narrow(axis, 0, count), indices.narrow(axis, 0, count)
    indices = indices.to(dtype)
    return {"value": (values,), "indices": (indices,), "both": (values, indices)}[ret_typ]


OPERATORS: dict[str, Callable[..., Any]] = {
    "sum": sum_,
    "mean": mean,
    "prod": prod,
    **dict.fromkeys(("max", "min"), extreme),
    "norm": norm,
    **dict.fromkeys(("argmax", "argmin"), arg_extreme),
    "argsort": argsort,
    "sort": sort,
    "topk": topk,
}
