"""What all rivals share: data and initial parameters from a file, and the line to the parent process."""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from answering import Line, serve  # noqa: E402

__all__ = ["BATCH", "Data", "Line", "serve"]

BATCH = 64


class Data:
    """Digits: ``image`` (N, 1, 8, 8) float32, ``kind`` (N,) int64, ``odd`` (N, 1) float32.

    `parameters` are (weight, bias) of each dense layer, the body's first; weights are (outputs, inputs).
    """

    def __init__(self, path: str) -> None:
        with np.load(path) as file:
            self.image, self.kind, self.odd = (file[name] for name in ("image", "kind", "odd"))
            self.parameters = [(file[f"weight{i}"], file[f"bias{i}"]) for i in range(4)]

    def batches(self) -> list[tuple[np.ndarray, ...]]:
        """Return the digits in batches."""
        starts = range(0, len(self.image), BATCH)
        return [tuple(a[i : i + BATCH] for a in (self.image, self.kind, self.odd)) for i in starts]
