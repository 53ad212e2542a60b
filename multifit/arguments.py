"""Checks of arguments that must be numbers."""

from __future__ import annotations

import math
import numbers
import operator

from .errors import shown


def whole_number(name: str, value: object, least: int = 1) -> int:
    """Return `value` as an int of at least `least`; raise ValueError for anything else.

    NumPy's integers are accepted, ``True`` and ``3.0`` are not. `name` is the argument in the message, such
    as ``Every: n``.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or number < least:
        raise ValueError(f"{name} is {shown(value)}; valid is a whole number of at least {least}")
    return number


def finite_number(
    name: str,
    value: object,
    least: float | None = None,
    above: float | None = None,
    below: float | None = None,
) -> float:
    """Return `value` as a finite float within the bounds; raise ValueError for anything else.

    `least` is an inclusive bound, `above` and `below` are exclusive. NumPy's numbers are accepted, ``True``
    and ``"1"`` are not. `name` is the argument in the message, such as ``MixUp: alpha``.
    """
    if is_finite_number(value):
        number = float(value)  # type: ignore[arg-type]
        if (
            (least is None or number >= least)
            and (above is None or number > above)
            and (below is None or number < below)
        ):
            return number
    bounds = [f"of at least {least:g}"] if least is not None else []
    bounds += [f"above {above:g}"] if above is not None else []
    bounds += [f"below {below:g}"] if below is not None else []
    raise ValueError(f"{name} is {shown(value)}; valid is a finite number {' and '.join(bounds)}".rstrip())


def is_finite_number(value: object) -> bool:
    """Return whether `value` is a real number other than NaN and infinity; a bool is not a number."""
    try:
        return is_number(value) and math.isfinite(float(value))  # type: ignore[arg-type]
    except (OverflowError, TypeError, ValueError):  # 10**400, or a number that is none
        return False


def is_number(value: object) -> bool:
    """Return whether `value` is a real number; a bool is not."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)
