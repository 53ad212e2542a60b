"""Arrays of a whole pass, from which functions are computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ..spec.checks import describe
from ..utils.errors import SpecError
from ..utils.protocols import Numbers


class _Piece(NamedTuple):
    """One device's arrays of one batch, and its number of samples."""

    batch: int
    size: int
    labels: Sequence[Numbers]
    outputs: Sequence[Numbers]

    @property
    def arrays(self) -> list[Numbers]:
        return [*self.labels, *self.outputs]


class KeptArrays:
    """Labels and outputs of all batches so far, in NumPy; `where` is the metric's name in errors."""

    def __init__(self, where: str) -> None:
        self._where, self._axis = where, 0
        self._pieces: list[_Piece] = []

    def clear(self) -> None:
        """Discard everything."""
        self._pieces = []

    def __len__(self) -> int:
        return len(self._pieces)

    def add(
        self,
        batch: int,
        size: int,
        axis: int,
        labels: Sequence[Numbers],
        outputs: Sequence[Numbers],
    ) -> None:
        """Add one device's arrays of a batch, whose number counts from 1, of `size` samples along `axis`.

        Raises SpecError if they cannot be joined with those of earlier batches.
        """
        self._axis = axis
        self._append(_Piece(batch, size, labels, outputs))

    def joined(self) -> tuple[list[Numbers], list[Numbers]]:
        """Return the labels and the outputs of the whole pass, each joined along its samples."""
        pieces = sorted(self._pieces, key=lambda piece: piece.batch)  # those of other ranks come last
        columns = [
            np.concatenate(arrays, min(map(self._sample_axis, pieces, arrays)))
            for arrays in zip(*(piece.arrays for piece in pieces))
        ]
        labels = len(pieces[0].labels)
        return columns[:labels], columns[labels:]

    def state(self) -> dict[str, Any]:
        """Return everything, if there is anything, in few arrays: "values" has all pieces of each."""
        columns = list(zip(*(piece.arrays for piece in self._pieces)))
        return {
            "axis": self._axis,
            "labels": len(self._pieces[0].labels),
            "pieces": [[piece.batch, piece.size] for piece in self._pieces],
            "shapes": [[list(array.shape) for array in arrays] for arrays in columns],
            "values": [np.concatenate([array.ravel() for array in arrays]) for arrays in columns],
        }

    def merge(self, state: Mapping[str, Any]) -> None:
        """Add what :meth:`state` returned, now or in another process, where batches had the same numbers.

        Raises SpecError as :meth:`add` does.
        """
        self._axis, columns = state["axis"], []
        for shapes, values in zip(state["shapes"], state["values"]):
            parts = np.split(values, np.cumsum([prod(shape) for shape in shapes])[:-1])
            columns.append([part.reshape(shape) for part, shape in zip(parts, shapes)])
        for (batch, size), arrays in zip(state["pieces"], zip(*columns)):
            labels, outputs = arrays[: state["labels"]], arrays[state["labels"] :]
            self._append(_Piece(batch, size, labels, outputs))

    def _append(self, piece: _Piece) -> None:
        first = self._pieces[0] if self._pieces else piece
        if not self._fits(first, piece):
            before, new = describe.arrays(first.arrays), describe.arrays(piece.arrays)
            raise SpecError(
                f"{self._where}: it is computed from the arrays of all batches, joined along their samples, "
                f"but batch {piece.batch} has {new}, and batch {first.batch} {before}; pad them to one size, "
                "let transform= flatten them, or give a metric with an update(), called for each batch"
            )
        self._pieces.append(piece)

    def _sample_axis(self, piece: _Piece, array: Numbers) -> int:
        """Return the axis along which an array is joined: that of the batch's samples, or else the first one.

        The samples of an output need not be along the same axis as those of slots: the last step of a
        sequence has no axis of steps.
        """
        return self._axis if array.shape[self._axis :][:1] == (piece.size,) else 0

    def _fits(self, one: _Piece, other: _Piece) -> bool:
        """Whether the arrays of two pieces can be joined: all axes but one have the same sizes."""
        if (len(one.labels), len(one.outputs)) != (len(other.labels), len(other.outputs)):
            return False
        for pair in zip(one.arrays, other.arrays):
            axis = min(map(self._sample_axis, (one, other), pair))
            if len({array.shape[:axis] + array.shape[axis + 1 :] for array in pair}) > 1:
                return False
        return True
