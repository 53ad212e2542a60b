"""Operators on the elements of two tensors or more; shapes are broadcast."""

from __future__ import annotations

from typing import Any

import torch

from ..attributes import Tensor


class Larger(torch.autograd.Function):
    """The larger of two elements; where they are equal the first gets the gradient, which torch divides."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        """Compare."""
        is_first = x >= y
        ctx.save_for_backward(is_first)
        ctx.shapes = x.shape, y.shape
        return torch.where(is_first, x, y)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Give the gradient to the larger."""
        (is_first,) = ctx.saved_tensors
        first, second = ctx.shapes
        return (gradient * is_first).sum_to_size(first), (gradient * ~is_first).sum_to_size(second)


def maximum(x: Tensor, y: Tensor) -> Tensor:
    """Return the larger elements."""
    return Larger.apply(x, y)


def minimum(x: Tensor, y: Tensor) -> Tensor:
    """Return the smaller elements."""
    return -Larger.apply(-x, -y)


def equal(x: Tensor, y: Tensor) -> Tensor:
    """Return 1 where elements are equal, else 0; like all comparisons in the type of `x`."""
    return torch.eq(x, y).to(x.dtype)


def not_equal(x: Tensor, y: Tensor) -> Tensor:
    """Return 1 where elements differ."""
    return torch.ne(x, y).to(x.dtype)


def greater(x: Tensor, y: Tensor) -> Tensor:
    """Return 1 where `x` is greater."""
    return torch.gt(x, y).to(x.dtype)


def greater_equal(x: Tensor, y: Tensor) -> Tensor:
    """Return 1 where `x` is not less."""
    return torch.ge(x, y).to(x.dtype)


def lesser(x: Tensor, y: Tensor) -> Tensor:
    """Return 1 where `x` is less."""
    return torch.lt(x, y).to(x.dtype)


def lesser_equal(x: Tensor, y: Tensor) -> Tensor:
    """Return 1 where `x` is not greater."""
    return torch.le(x, y).to(x.dtype)


def logical_and(x: Tensor, y: Tensor) -> Tensor:
    """Return 1 where neither is 0."""
    return torch.logical_and(x, y).to(x.dtype)


def logical_or(x: Tensor, y: Tensor) -> Tensor:
    """Return 1 where one is not 0."""
    return torch.logical_or(x, y).to(x.dtype)


def logical_xor(x: Tensor, y: Tensor) -> Tensor:
    """Return 1 where exactly one is 0."""
    return torch.logical_xor(x, y).to(x.dtype)


def add_n(*xs: Tensor) -> Tensor:
    """Return the sum of tensors, added in their order."""
    total = xs[0]
    for x in xs[1:]:
        total = total + x
    return total


def where(condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Choose elements, or with a condition of one axis, rows."""
    condition = condition != 0
    if condition.ndim < x.ndim:
        condition = condition.reshape(-1, *[1] * (x.ndim - 1))
    return torch.where(condition, x, y)


_BROADCAST = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "mod": torch.remainder,
    "power": torch.pow,
    "hypot": torch.hypot,
    "maximum": maximum,
    "minimum": minimum,
    "equal": equal,
    "not_equal": not_equal,
    "greater": greater,
    "greater_equal": greater_equal,
    "lesser": lesser,
    "lesser_equal": lesser_equal,
    "logical_and": logical_and,
    "logical_or": logical_or,
    "logical_xor": logical_xor,
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
