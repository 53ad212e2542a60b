"""Sorting. Equal elements keep their order; indices are floats unless `dtype` says otherwise."""

from __future__ import annotations

from typing import Literal, Optional

import torch

from ..attributes import Tensor


def argsort(
    x: Tensor, *, axis: Optional[int] = -1, is_ascend: bool = True, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Return the indices that sort the elements."""
    x, axis = (x.flatten(), 0) if axis is None else (x, axis)
    return x.argsort(dim=axis, descending=not is_ascend, stable=True).to(dtype)


def sort(x: Tensor, *, axis: Optional[int] = -1, is_ascend: bool = True) -> Tensor:
    """Return the elements in order."""
    x, axis = (x.flatten(), 0) if axis is None else (x, axis)
    return x.sort(dim=axis, descending=not is_ascend, stable=True)[0]


def topk(
    x: Tensor,
    *,
    axis: Optional[int] = -1,
    k: int = 1,
    ret_typ: Literal["value", "indices", "mask", "both"] = "indices",
    is_ascend: bool = False,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, ...]:
    """Return the largest or smallest `k` elements along an axis: values, indices or a mask.

    With ``k=0``, return all elements.
    """
    whole, x, axis = x, *((x.flatten(), 0) if axis is None else (x, axis))
    count = k if 0 < k < x.shape[axis] else x.shape[axis]
    values, indices = x.sort(dim=axis, descending=not is_ascend, stable=True)
    values, indices = values.narrow(axis, 0, count), indices.narrow(axis, 0, count)
    if ret_typ == "mask":
        return (torch.zeros_like(x).scatter(axis, indices, 1).reshape(whole.shape),)
    indices = indices.to(dtype)
    return {"value": (values,), "indices": (indices,), "both": (values, indices)}[ret_typ]


OPERATORS = {"argsort": argsort, "sort": sort, "topk": topk}
