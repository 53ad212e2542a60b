"""Operators on the elements of two or more tensors; shapes are broadcast."""

from __future__ import annotations

from typing import Any, Union

import torch

from ..attributes import Tensor
from .integers import as_float, of_type


class Extreme(torch.autograd.Function):
    """The larger or smaller of two elements; where they are equal, the first gets the gradient.

    Torch would divide the gradient between them. NaN is returned, and receives no gradient.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, larger: bool) -> Tensor:
        """Compare."""
        masks = (x >= y, x < y) if larger else (x <= y, x > y)
        ctx.save_for_backward(*masks)
        ctx.shapes = x.shape, y.shape
        return torch.maximum(x, y) if larger else torch.minimum(x, y)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        """Give the gradient to the element that was returned."""
        is_first, is_second = ctx.saved_tensors
        first, second = ctx.shapes
        return (gradient * is_first).sum_to_size(first), (gradient * is_second).sum_to_size(second), None


def maximum(x: Tensor, y: Tensor) -> Tensor:
    """Return the larger elements."""
    return Extreme.apply(x, y, True) if x.requires_grad or y.requires_grad else torch.maximum(x, y)


def minimum(x: Tensor, y: Tensor) -> Tensor:
    """Return the smaller elements."""
    return Extreme.apply(x, y, False) if x.requires_grad or y.requires_grad else torch.minimum(x, y)


def div(x: Tensor, y: Union[Tensor, float]) -> Tensor:
    """Return x / y; integers are rounded towards zero."""
    return torch.div(x, y, rounding_mode=None if x.is_floating_point() else "trunc")


def mod(x: Tensor, y: Tensor) -> Tensor:
    """Return the remainder of x / y, with the sign of `y`; 0, with a gradient of 1, where `y` is 0."""
    is_zero = y == 0
    return torch.where(is_zero, x - x.detach(), torch.remainder(x, y.masked_fill(is_zero, 1)))


def power(x: Tensor, y: Tensor) -> Tensor:
    """Return x to the power of y."""
    return of_type(torch.pow(as_float(x), as_float(y)), x)


def hypot(x: Tensor, y: Tensor) -> Tensor:
    """Return the square root of x² + y²."""
    return of_type(torch.hypot(as_float(x), as_float(y)), x)


COMPARISONS = {
    "equal": torch.eq,
    "not_equal": torch.ne,
    "greater": torch.gt,
    "greater_equal": torch.ge,
    "lesser": torch.lt,
    "lesser_equal": torch.le,
    "logical_and": torch.logical_and,
    "logical_or": torch.logical_or,
    "logical_xor": torch.logical_xor,
}


def compare(x: Tensor, y: Tensor, *, operator: str) -> Tensor:
    """Return 1 where a comparison holds, else 0, in the type of `x`.

    For logical operators, every number but 0 is true.
    """
    name = operator.removeprefix("broadcast").removeprefix("_")
    return COMPARISONS[name](x, y).to(x.dtype)


def add_n(*xs: Tensor) -> Tensor:
    """Return the sum of tensors, added in their order."""
    total = xs[0]
    for x in xs[1:]:
        total = total + x
    return total


def where(condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Choose elements; with a condition of one axis, choose rows."""
    condition = condition != 0
    if condition.ndim < x.ndim:
        condition = condition.reshape(-1, *[1] * (x.ndim - 1))
    return torch.where(condition, x, y)


_BROADCAST = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": div,
    "mod": mod,
    "power": power,
    "hypot": hypot,
    "maximum": maximum,
    "minimum": minimum,
    **dict.fromkeys(COMPARISONS, compare),
}

OPERATORS = {
    **{f"broadcast_{name}": function for name, function in _BROADCAST.items()},
    **{f"_{name}": function for name, function in _BROADCAST.items()},
    **{f"elemwise_{name}": _BROADCAST[name] for name in ("add", "sub", "mul", "div")},
    "_plus": torch.add,
    "_minus": torch.sub,
    "_grad_add": torch.add,
    "add_n": add_n,
    "where": where,
}
