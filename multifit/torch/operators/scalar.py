"""Operators on each element and a number; with integers, the number is truncated to an integer too."""

from __future__ import annotations

from typing import Any

import torch

from ..attributes import Tensor
from .binary import COMPARISONS, div, mod
from .integers import as_float, number, of_type


def plus_scalar(x: Tensor, *, scalar: float, is_int: bool = True) -> Tensor:
    """Return x + scalar."""
    return x + number(x, scalar)


def minus_scalar(x: Tensor, *, scalar: float, is_int: bool = True) -> Tensor:
    """Return x - scalar."""
    return x - number(x, scalar)


def rminus_scalar(x: Tensor, *, scalar: float, is_int: bool = True) -> Tensor:
    """Return scalar - x."""
    return number(x, scalar) - x


def mul_scalar(x: Tensor, *, scalar: float, is_int: bool = True) -> Tensor:
    """Return x · scalar."""
    return x * number(x, scalar)


def div_scalar(x: Tensor, *, scalar: float, is_int: bool = True) -> Tensor:
    """Return x / scalar; integers are rounded towards zero."""
    return div(x, number(x, scalar))


def rdiv_scalar(x: Tensor, *, scalar: float, is_int: bool = True) -> Tensor:
    """Return scalar / x; integers are rounded towards zero."""
    return torch.div(number(x, scalar), x, rounding_mode=None if x.is_floating_point() else "trunc")


def mod_scalar(x: Tensor, *, scalar: float, is_int: bool = True) -> Tensor:
    """Return the remainder of x / scalar, with the sign of `scalar`; 0 if `scalar` is 0."""
    divisor = number(x, scalar)
    return torch.remainder(x, divisor) if divisor else x - x.detach()


def rmod_scalar(x: Tensor, *, scalar: float, is_int: bool = True) -> Tensor:
    """Return the remainder of scalar / x, with the sign of `x`; 0 where `x` is 0."""
    return mod(torch.full_like(x, number(x, scalar)), x)


def power_scalar(x: Tensor, *, scalar: float, is_int: bool = True) -> Tensor:
    """Return x to the power of scalar."""
    return of_type(torch.pow(as_float(x), number(x, scalar)), x)


def rpower_scalar(x: Tensor, *, scalar: float, is_int: bool = True) -> Tensor:
    """Return scalar to the power of x."""
    return of_type(torch.pow(number(x, scalar), as_float(x)), x)


def maximum_scalar(x: Tensor, *, scalar: float, is_int: bool = True) -> Tensor:
    """Return the larger of x and scalar; the gradient flows where they are equal."""
    return torch.clamp(x, min=number(x, scalar))


def minimum_scalar(x: Tensor, *, scalar: float, is_int: bool = True) -> Tensor:
    """Return the smaller of x and scalar; the gradient flows where they are equal."""
    return torch.clamp(x, max=number(x, scalar))


def compare_scalar(x: Tensor, *, operator: str, scalar: float, is_int: bool = True) -> Tensor:
    """Return 1 where a comparison of x and scalar holds, else 0, in the type of `x`."""
    name = operator.removeprefix("_").removesuffix("_scalar")
    y = x.new_full((), scalar != 0) if name.startswith("logical") else number(x, scalar)
    return COMPARISONS[name](x, y).to(x.dtype)


class ScaledGradient(torch.autograd.Function):
    """A tensor whose gradient is multiplied."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        """Return `x`."""
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Return the gradient times the scale."""
        return gradient * ctx.scale, None


def multiply_gradient(x: Tensor, *, scalar: float = 1.0, is_int: bool = True) -> Tensor:
    """Return `x`; its gradient is multiplied by scalar, which is negative where a net has an adversary."""
    return ScaledGradient.apply(x, scalar)


OPERATORS = {
    "_plus_scalar": plus_scalar,
    "_minus_scalar": minus_scalar,
    "_rminus_scalar": rminus_scalar,
    "_mul_scalar": mul_scalar,
    "_div_scalar": div_scalar,
    "_rdiv_scalar": rdiv_scalar,
    "_mod_scalar": mod_scalar,
    "_rmod_scalar": rmod_scalar,
    "_power_scalar": power_scalar,
    "_rpower_scalar": rpower_scalar,
    "_maximum_scalar": maximum_scalar,
    "_minimum_scalar": minimum_scalar,
    "_contrib_gradientmultiplier": multiply_gradient,
    **{f"_{name}_scalar": compare_scalar for name in COMPARISONS},
}
