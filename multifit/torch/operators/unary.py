"""Operators on each element of one tensor."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from ..attributes import Tensor


def round_half_away(x: Tensor) -> Tensor:
    """Round to the nearest whole number, halves away from zero."""
    whole = torch.trunc(x)
    return torch.where((x - whole).abs() >= 0.5, whole + torch.sign(x), whole).detach()


def round_half_down(x: Tensor) -> Tensor:
    """Round to the nearest whole number, halves down."""
    down = torch.floor(x)
    return torch.where(x - down > 0.5, down + 1, down).detach()


def logical_not(x: Tensor) -> Tensor:
    """Return 1 where an element is 0, else 0, in the type of `x`."""
    return (x == 0).to(x.dtype)


def identity(x: Tensor) -> Tensor:
    """Return the same."""
    return x


def gamma(x: Tensor) -> Tensor:
    """Return the gamma function; correct for positive numbers and, by reflection, for negative ones."""
    positive = torch.exp(torch.lgamma(torch.where(x > 0, x, 1 - x)))
    return torch.where(x > 0, positive, math.pi / (torch.sin(math.pi * x) * positive))


def rcbrt(x: Tensor) -> Tensor:
    """Return the reciprocal of the cube root."""
    return torch.reciprocal(cbrt(x))


def cbrt(x: Tensor) -> Tensor:
    """Return the cube root, of negative numbers too."""
    return torch.sign(x) * x.abs().pow(1 / 3)


def degrees(x: Tensor) -> Tensor:
    """Return degrees for radians."""
    return x * (180 / math.pi)


def radians(x: Tensor) -> Tensor:
    """Return radians for degrees."""
    return x * (math.pi / 180)


def hard_sigmoid(x: Tensor, *, alpha: float = 0.2, beta: float = 0.5) -> Tensor:
    """Return a line through (0, `beta`), between 0 and 1."""
    return torch.clamp(alpha * x + beta, 0, 1)


def clip(x: Tensor, *, a_min: float, a_max: float) -> Tensor:
    """Return elements between two bounds; at the bounds themselves the gradient flows."""
    return torch.clamp(x, a_min, a_max)


def smooth_l1(x: Tensor, *, scalar: float = 1.0) -> Tensor:
    """Return half the square near zero, where it is below 1 / scalar², and the distance beyond."""
    square = scalar * scalar
    return torch.where(x.abs() < 1 / square, 0.5 * square * x * x, x.abs() - 0.5 / square)


def cast(x: Tensor, *, dtype: torch.dtype) -> Tensor:
    """Return another type; floats become integers towards zero."""
    return x.to(dtype)


def div_sqrt_dim(x: Tensor) -> Tensor:
    """Divide by the square root of the last axis's size."""
    return x / math.sqrt(x.shape[-1])


def amp_multicast(*xs: Tensor, num_outputs: int, cast_narrow: bool = False) -> tuple[Tensor, ...]:
    """Return tensors of one type: float16 becomes that of the others, or if narrow float32 becomes float16.

    Without any float16, as in all graphs that are not of mixed precision, they stay as they are.
    """
    others = [x.dtype for x in xs if x.dtype != torch.float16]
    if not others or len(others) == num_outputs:
        return xs
    old, new = (torch.float32, torch.float16) if cast_narrow else (torch.float16, others[0])
    return tuple(x.to(new) if x.dtype == old else x for x in xs)


OPERATORS = {
    "abs": torch.abs,
    "arccos": torch.arccos,
    "arccosh": torch.arccosh,
    "arcsin": torch.arcsin,
    "arcsinh": torch.arcsinh,
    "arctan": torch.arctan,
    "arctanh": torch.arctanh,
    "cbrt": cbrt,
    "ceil": torch.ceil,
    "cos": torch.cos,
    "cosh": torch.cosh,
    "degrees": degrees,
    "erf": torch.erf,
    "erfinv": torch.erfinv,
    "exp": torch.exp,
    "expm1": torch.expm1,
    "fix": torch.trunc,
    "floor": torch.floor,
    "gamma": gamma,
    "gammaln": torch.lgamma,
    "log": torch.log,
    "log10": torch.log10,
    "log1p": torch.log1p,
    "log2": torch.log2,
    "negative": torch.neg,
    "radians": radians,
    "rcbrt": rcbrt,
    "reciprocal": torch.reciprocal,
    "relu": torch.relu,
    "rsqrt": torch.rsqrt,
    "sigmoid": torch.sigmoid,
    "sign": torch.sign,
    "sin": torch.sin,
    "sinh": torch.sinh,
    "softsign": F.softsign,
    "sqrt": torch.sqrt,
    "square": torch.square,
    "tan": torch.tan,
    "tanh": torch.tanh,
    "trunc": torch.trunc,
    "round": round_half_away,
    "rint": round_half_down,
    "logical_not": logical_not,
    "_copy": identity,
    "BlockGrad": torch.detach,
    "hard_sigmoid": hard_sigmoid,
    "clip": clip,
    "smooth_l1": smooth_l1,
    "Cast": cast,
    "amp_cast": cast,
    "amp_multicast": amp_multicast,
    "_contrib_div_sqrt_dim": div_sqrt_dim,
}
