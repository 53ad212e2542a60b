"""What MXNet's operators do with integers: the result is an integer too, rounded towards zero."""

from __future__ import annotations

from ..attributes import Tensor


def number(x: Tensor, scalar: float) -> float:
    """Return a number as one of the type of `x`."""
    return scalar if x.is_floating_point() else int(scalar)


def as_float(x: Tensor) -> Tensor:
    """Return integers as float32, for functions of torch that take floats only."""
    return x if x.is_floating_point() else x.float()


def of_type(result: Tensor, x: Tensor) -> Tensor:
    """Return what was computed of integers as integers of the type of `x`."""
    return result if x.is_floating_point() else result.to(x.dtype)
