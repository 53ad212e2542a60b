"""Join the arrays of all devices, so that a metric gets the same as from a single device."""

from __future__ import annotations

from typing import Any, Iterable, NamedTuple, Sequence

from ..compat import mx
from ..data.arrays import sample_axis


class Joining(NamedTuple):
    """Joins the devices' pieces of an array along `axis`; `sizes` are their numbers of samples."""

    sizes: Sequence[int]
    axis: int

    def whole_or_each(self, columns: Sequence[Sequence[Any]]) -> Iterable[Sequence[Any]]:
        """Yield the arrays, each joined from the devices' pieces on the first device, in one list.

        If the sample axis of any array is not clear, or if a piece is not an NDArray, yields a list for each
        device with its pieces instead. Does not wait for the engine.
        """
        axes = [self._axis(pieces) for pieces in columns]
        if len(columns[0]) == 1 or None in axes:
            return zip(*columns)
        context = columns[0][0].context
        moved = [[piece.as_in_context(context) for piece in pieces] for pieces in columns]
        return [[mx.nd.concat(*pieces, dim=axis) for pieces, axis in zip(moved, axes)]]

    def _axis(self, pieces: Sequence[Any]) -> int | None:
        are_arrays = all(isinstance(piece, mx.nd.NDArray) for piece in pieces)
        return sample_axis(pieces, self.sizes, self.axis) if are_arrays else None
