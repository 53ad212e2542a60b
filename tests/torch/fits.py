"""Checks that both engines make the same of a fit."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

TOLERANCE = 5e-7


def assert_close(one: Any, other: Any, where: str = "", tolerance: float = TOLERANCE) -> None:
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_allclose(
            other[name], one[name], rtol=tolerance, atol=tolerance, err_msg=f"{where}{name}"
        )


def assert_engines_agree(fit: Callable[[str], Iterable[Any]], tolerance: float = TOLERANCE) -> None:
    """Check that each of the dicts that ``fit(engine)`` returns is the same with MXNet and on torch."""
    for one, other in zip(fit("mxnet"), fit("torch"), strict=True):
        assert_close(one, other, tolerance=tolerance)
