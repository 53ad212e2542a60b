"""Joins the arrays of all devices, for metrics that are functions of NumPy arrays."""

from __future__ import annotations

from typing import Any, NamedTuple, Sequence

import numpy as np

from ...checks import describe
from ...errors import SpecError
from ..data.arrays import to_numpy


class Joining(NamedTuple):
    """How the devices' pieces become one array: along `axis`; `sizes` are their numbers of samples."""

    sizes: Sequence[int]
    axis: int

    def __call__(self, where: str, pieces: Sequence[Any]) -> np.ndarray:
        """Return the devices' pieces of one array as one, joined along the first axis if not along `axis`.

        An output need not have its samples where slots have them: the last step of a sequence has no axis of
        steps. Raises SpecError, with `where`, if the other axes differ.
        """
        arrays = [to_numpy(piece) for piece in pieces]
        is_along = all(array.shape[self.axis :][:1] == (size,) for array, size in zip(arrays, self.sizes))
        try:
            return np.concatenate(arrays, self.axis if is_along else 0)
        except ValueError:
            found = f"{describe.arrays(arrays)}, which do not fit together"
            way_out = "pad them to one size, or give an EvalMetric, which gets a list of arrays"
            message = f"{where}: a function gets the arrays of all devices as one, but these are {found}"
            raise SpecError(f"{message}; {way_out}") from None
