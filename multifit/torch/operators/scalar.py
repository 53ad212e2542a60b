"""Operators on each element and a number. Beside integers the number is made one, towards zero."""

from __future__ import annotations

import torch

from ..attributes import Tensor
from .binary import div, mod
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
    """Return x / scalar; of integers, towards zero."""
    return div(x, number(x, scalar))


def rdiv_scalar(x: Tensor, *, scalar: float, is_int: bool = True) -> Tensor:
    """Return scalar / x; of integers, towards zero."""
    return torch.div(number(x, scalar), x, rounding_mode=None if x.is_floating_point() else "trunc")


def mod_scalar(x: Tensor, *, scalar: float, is_int: bool = True) -> Tensor:
    """Return the remainder of x / scalar, with the sign of `scalar`; 0 if that is 0."""
    divisor = number(x, scalar)
    return torch.remainder(x, divisor) if divisor else x - x.detach()


def rmod_scalar(x: Tensor, *, scalar: float, is_int: bool = True) -> Tensor:
    """Return the remainder of scalar / x, with the sign of `x`; 0 where that is 0."""
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


def equal_scalar(x: Tensor, *, scalar: float, is_int: bool = True) -> Tensor:
    """Return 1 where x is scalar, else 0; like all comparisons in the type of `x`."""
    return torch.eq(x, number(x, scalar)).to(x.dtype)


def not_equal_scalar(x: Tensor, *, scalar: float, is_int: bool = True) -> Tensor:
    """Return 1 where x is not scalar."""
    return torch.ne(x, number(x, scalar)).to(x.dtype)


def greater_scalar(x: Tensor, *, scalar: float, is_int: bool = True) -> Tensor:
    """Return 1 where x is greater than scalar."""
    return torch.gt(x, number(x, scalar)).to(x.dtype)


def greater_equal_scalar(x: Tensor, *, scalar: float, is_int: bool = True) -> Tensor:
    """Return 1 where x is not less than scalar."""
    return torch.ge(x, number(x, scalar)).to(x.dtype)


def lesser_scalar(x: Tensor, *, scalar: float, is_int: bool = True) -> Tensor:
    """Return 1 where x is less than scalar."""
    return torch.lt(x, number(x, scalar)).to(x.dtype)


def lesser_equal_scalar(x: Tensor, *, scalar: float, is_int: bool = True) -> Tensor:
    """Return 1 where x is not greater than scalar."""
    return torch.le(x, number(x, scalar)).to(x.dtype)


def logical_and_scalar(x: Tensor, *, scalar: float, is_int: bool = True) -> Tensor:
    """Return 1 where x is not 0, unless scalar is."""
    return ((x != 0) & (scalar != 0)).to(x.dtype)


def logical_or_scalar(x: Tensor, *, scalar: float, is_int: bool = True) -> Tensor:
    """Return 1 where x is not 0, everywhere if scalar is not."""
    return ((x != 0) | (scalar != 0)).to(x.dtype)


def logical_xor_scalar(x: Tensor, *, scalar: float, is_int: bool = True) -> Tensor:
    """Return 1 where exactly one of x and scalar is 0."""
    return ((x != 0) ^ (scalar != 0)).to(x.dtype)


OPERATORS = {f"_{name}": function for name, function in globals().items() if name.endswith("_scalar")}
