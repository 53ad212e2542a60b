"""Operators on each element of one or two tensors, or of a tensor and a number."""

import math
from collections.abc import Callable
from typing import Any

import torch

from ..attributes import Tensor

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


# ---- Two or more tensors; shapes are broadcast


def maximum(x: Tensor, y: Tensor) -> Tensor:
    """Return the larger elements; where they are equal, the first gets the gradient, not half of it."""
    return torch.where((x >= y) | x.isnan(), x, y)


def minimum(x: Tensor, y: Tensor) -> Tensor:
    """Return the smaller elements; where they are equal, the first gets the gradient, not half of it."""
    return torch.where((x <= y) | x.isnan(), x, y)


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
    """Return 1 where a comparison holds, else 0, in the type of `x`."""
    return COMPARISONS[operator.removeprefix("broadcast").removeprefix("_")](x, y).to(x.dtype)


def add_n(*xs: Tensor) -> Tensor:
    """Return the sum of tensors, added in their order."""
    return sum(xs[1:], xs[0])


def where(condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Choose elements; with a condition of one axis, choose rows."""
    condition = condition != 0
    if condition.ndim < x.ndim:
        condition = condition.reshape(-1, *[1] * (x.ndim - 1))
    return torch.where(condition, x, y)


# ---- One tensor


def elementwise(x: Tensor, *, operator: str) -> Tensor:
    """Return the result of torch's function with that name, as integers if `x` has integers."""
    return of_type(getattr(torch, operator)(x), x)


def logical_not(x: Tensor) -> Tensor:
    """Return 1 where an element is 0, else 0, in the type of `x`."""
    return (x == 0).to(x.dtype)


def identity(x: Tensor) -> Tensor:
    """Return `x`."""
    return x


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
    return of_type(torch.where(x.abs() < 1 / square, 0.5 * square * x * x, x.abs() - 0.5 / square), x)


def cast(x: Tensor, *, dtype: torch.dtype) -> Tensor:
    """Convert to another type; floats become integers by rounding towards zero."""
    return x.to(dtype)


def div_sqrt_dim(x: Tensor) -> Tensor:
    """Divide by the square root of the last axis's size."""
    return div(x, number(x, math.sqrt(x.shape[-1])))


def amp_multicast(*xs: Tensor, num_outputs: int, cast_narrow: bool = False) -> tuple[Tensor, ...]:
    """Return tensors of one type: float16 becomes another's; if narrow, float32 becomes float16."""
    others = [x.dtype for x in xs if x.dtype != torch.float16]
    if not others or len(others) == num_outputs:
        return xs
    old, new = (torch.float32, torch.float16) if cast_narrow else (torch.float16, others[0])
    return tuple(x.to(new) if x.dtype == old else x for x in xs)


# ---- A tensor and a number; with integers, the number is truncated to an integer too

SCALARS = {
    "plus": lambda x, n: x + n,
    "minus": lambda x, n: x - n,
    "rminus": lambda x, n: n - x,
    "mul": lambda x, n: x * n,
    "div": div,
    "rdiv": lambda x, n: torch.div(n, x, rounding_mode=None if x.is_floating_point() else "trunc"),
    "mod": lambda x, n: torch.remainder(x, n) if n else x - x.detach(),
    "rmod": lambda x, n: mod(torch.full_like(x, n), x),
    "power": lambda x, n: of_type(torch.pow(as_float(x), n), x),
    "rpower": lambda x, n: of_type(torch.pow(n, as_float(x)), x),
    "maximum": lambda x, n: torch.clamp(x, min=n),  # the gradient flows where they are equal
    "minimum": lambda x, n: torch.clamp(x, max=n),
}


def with_scalar(x: Tensor, *, operator: str, scalar: float, is_int: bool = True) -> Tensor:
    """Compute with a number; a comparison returns 1 or 0 in the type of `x`."""
    name = operator.removeprefix("_").removesuffix("_scalar")
    if name in COMPARISONS:
        y = x.new_full((), scalar != 0) if name.startswith("logical") else number(x, scalar)
        return COMPARISONS[name](x, y).to(x.dtype)
    return SCALARS[name](x, number(x, scalar))  # type: ignore[no-untyped-call]


def multiply_gradient(x: Tensor, *, scalar: float = 1.0, is_int: bool = True) -> Tensor:
    """Return `x`; its gradient is multiplied by scalar, which is negative where a net has an adversary."""
    return x.detach() + (x - x.detach()) * scalar if x.requires_grad else x


_BROADCAST: dict[str, Callable[..., Any]] = {
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

OPERATORS: dict[str, Callable[..., Any]] = {
    **{f"broadcast_{name}": function for name, function in _BROADCAST.items()},
    **{
        f"elemwise_{name}" if name in ("add", "sub", "mul", "div") else f"_{name}": function
        for name, function in _BROADCAST.items()
    },
    "_grad_add": torch.add,
    "add_n": add_n,
    "where": where,
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
    "logical_not": logical_not,
    "_copy": identity,
    "BlockGrad": torch.detach,
    "clip": clip,
    "smooth_l1": smooth_l1,
    "Cast": cast,
    "amp_cast": cast,
    "amp_multicast": amp_multicast,
    "_contrib_div_sqrt_dim": div_sqrt_dim,
    **{f"_{name}_scalar": with_scalar for name in (*SCALARS, *COMPARISONS)},
    "_contrib_gradientmultiplier": multiply_gradient,
}  # fmt: skip
