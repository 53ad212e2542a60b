"""Operators on each element of one or two tensors, or of a tensor and a number."""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from ..attributes import Tensor

OPERATORS: dict[str, Callable[..., Any]] = {}
"""By the names that MXNet writes into a symbol."""


# ---- Compute with integers as MXNet's operators do: the result is an integer too, rounded towards zero


def number(x: Tensor, scalar: float) -> float:
    """Return a number as an integer if `x` has integers."""
    return scalar if x.is_floating_point() else int(scalar)


def as_float(x: Tensor) -> Tensor:
    """Return integers as float32, for functions of torch that take floats only."""
    return x if x.is_floating_point() else x.float()


def of_type(result: Tensor, x: Tensor) -> Tensor:
    """Return a result in the type of `x` if `x` has integers."""
    return result if x.is_floating_point() else result.to(x.dtype)


def as_float32(number: float) -> float:
    """Round to float32 without an array: reading one would split a graph that torch captures."""
    mantissa, exponent = math.frexp(number)
    return math.ldexp(round(mantissa * 2**24), exponent - 24)


# ---- Operators on the elements of two or more tensors; shapes are broadcast


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


def div(x: Tensor, y: Tensor | float) -> Tensor:
    """Return x / y; integers are rounded towards zero."""
    return torch.div(x, y, rounding_mode=None if x.is_floating_point() else "trunc")


def mod(x: Tensor, y: Tensor) -> Tensor:
    """Return the remainder of x / y, with the sign of `y`; 0, with a gradient of 1, where `y` is 0."""
    is_zero = y == 0
    return torch.where(is_zero, x - x.detach(), torch.remainder(x, y.masked_fill(is_zero, 1)))


def power(x: Tensor, y: Tensor) -> Tensor:
    """Return x to the power of y."""
    return of_type(torch.pow(as_float(x), as_float(y)), x)


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
    "maximum": maximum,
    "minimum": minimum,
    **dict.fromkeys(COMPARISONS, compare),
}

OPERATORS |= {
    **{f"broadcast_{name}": function for name, function in _BROADCAST.items()},
    **{f"_{name}": function for name, function in _BROADCAST.items()},
    **{f"elemwise_{name}": _BROADCAST[name] for name in ("add", "sub", "mul", "div")},
    "_plus": torch.add,
    "_minus": torch.sub,
    "_grad_add": torch.add,
    "add_n": add_n,
    "where": where,
}


# ---- Operators on each element of one tensor


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


OPERATORS |= {
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


# ---- Operators on each element and a number; with integers, the number is truncated to an integer too


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


OPERATORS |= {
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
