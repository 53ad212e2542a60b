"""Compute with integers as MXNet's operators do: the result is an integer too, rounded towards zero."""

from __future__ import annotations

from ..attributes import Tensor


def number(x: Tensor, scalar: float) -> float:
    """Return a number as an integer if `x` has integers."""
    return scalar if x.is_floating_point() else int(scalar)


def as_float(x: Tensor) -> Tensor:
    """Return integers as float32, for functions of torch that take floats only."""
    return x if x.is_floating_point() else x.float()


def of_type(result: Tensor, x: Tensor) -> Tensor:
    """Return a result in the type of `x` if `x` has integers."""
    return result if x.is_floating_point() else result.to(x.dtype)
