"""Operators on each element of one tensor."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from ..attributes import Tensor
from .binary import div
from .integers import as_float, number, of_type


def elementwise(x: Tensor, *, operator: str) -> Tensor:
    """Return the result of torch's function with that name, as integers if `x` has integers."""
    return of_type(getattr(torch, operator)(x), x)


def round_half_away(x: Tensor) -> Tensor:
    """Round to the nearest integer, halves away from zero."""
    whole = torch.trunc(x)
    return torch.where((x - whole).abs() >= 0.5, whole + torch.sign(x), whole).detach()


def round_half_down(x: Tensor) -> Tensor:
    """Round to the nearest integer, halves down."""
    down = torch.floor(x)
    return torch.where(x - down > 0.5, down + 1, down).detach()


def logical_not(x: Tensor) -> Tensor:
    """Return 1 where an element is 0, else 0, in the type of `x`."""
    return (x == 0).to(x.dtype)


def identity(x: Tensor) -> Tensor:
    """Return `x`."""
    return x


def gamma(x: Tensor) -> Tensor:
    """Return the gamma function; correct for positive numbers and, by reflection, for negative ones."""
    positive = torch.exp(torch.lgamma(torch.where(x > 0, x, 1 - x)))
    return of_type(torch.where(x > 0, positive, math.pi / (torch.sin(math.pi * x) * positive)), x)


def gammaln(x: Tensor) -> Tensor:
    """Return the logarithm of the absolute value of the gamma function."""
    return of_type(torch.lgamma(x), x)


def softsign(x: Tensor) -> Tensor:
    r"""Return x / (1 + \|x\|)."""
    return of_type(F.softsign(as_float(x)), x)


def rcbrt(x: Tensor) -> Tensor:
    """Return the reciprocal of the cube root."""
    return of_type(cbrt(as_float(x)).reciprocal(), x)


def cbrt(x: Tensor) -> Tensor:
    """Return the cube root, also of negative numbers."""
    return of_type(torch.sign(x) * as_float(x).abs().pow(1 / 3), x)


def degrees(x: Tensor) -> Tensor:
    """Convert radians to degrees."""
    return of_type(x * (180 / math.pi), x)


def radians(x: Tensor) -> Tensor:
    """Convert degrees to radians."""
    return of_type(x * (math.pi / 180), x)


def hard_sigmoid(x: Tensor, *, alpha: float = 0.2, beta: float = 0.5) -> Tensor:
    """Return alpha · x + beta, clipped to 0 and 1; no gradient flows at these bounds."""
    return F.hardtanh(alpha * x + beta, 0, 1)


def clip(x: Tensor, *, a_min: float, a_max: float) -> Tensor:
    """Clip elements to two bounds; the gradient flows at the bounds themselves."""
    if x.is_floating_point():
        return torch.clamp(x, a_min, a_max)
    limits = torch.iinfo(x.dtype)
    low, high = (int(min(max(bound, limits.min), limits.max)) for bound in (a_min, a_max))
    return torch.clamp(x, low, high)


def smooth_l1(x: Tensor, *, scalar: float = 1.0) -> Tensor:
    """Return a smooth absolute value: quadratic between -1 / scalar² and 1 / scalar², linear beyond."""
    square = scalar * scalar
    result = torch.where(x.abs() < 1 / square, 0.5 * square * x * x, x.abs() - 0.5 / square)
    return of_type(result, x)


def cast(x: Tensor, *, dtype: torch.dtype) -> Tensor:
    """Convert to another type; floats become integers by rounding towards zero."""
    return x.to(dtype)


def div_sqrt_dim(x: Tensor) -> Tensor:
    """Divide by the square root of the last axis's size."""
    return div(x, number(x, math.sqrt(x.shape[-1])))


def amp_multicast(*xs: Tensor, num_outputs: int, cast_narrow: bool = False) -> tuple[Tensor, ...]:
    """Return tensors of one type: float16 becomes the type of the others; if narrow, float32 becomes float16.

    Without any float16, as in all graphs without mixed precision, they stay as they are.
    """
    others = [x.dtype for x in xs if x.dtype != torch.float16]
    if not others or len(others) == num_outputs:
        return xs
    old, new = (torch.float32, torch.float16) if cast_narrow else (torch.float16, others[0])
    return tuple(x.to(new) if x.dtype == old else x for x in xs)


OPERATORS = {
    **dict.fromkeys(
        (
            "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctanh", "cos", "cosh", "erf", "erfinv",
            "exp", "expm1", "log", "log10", "log1p", "log2", "reciprocal", "rsqrt", "sigmoid", "sin", "sinh",
            "sqrt", "tan", "tanh",
        ),
        elementwise,
    ),
    "abs": torch.abs,
    "ceil": torch.ceil,
    "fix": torch.trunc,
    "floor": torch.floor,
    "negative": torch.neg,
    "relu": torch.relu,
    "sign": torch.sign,
    "square": torch.square,
    "trunc": torch.trunc,
    "cbrt": cbrt,
    "degrees": degrees,
    "gamma": gamma,
    "gammaln": gammaln,
    "radians": radians,
    "rcbrt": rcbrt,
    "round": round_half_away,
    "rint": round_half_down,
    "softsign": softsign,
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
}  # fmt: skip
