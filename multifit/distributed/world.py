"""The ranks of a run: they exchange values, and sum arrays."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..utils.errors import PeerError
from ..utils.text import last_line

Vector = np.ndarray[Any, np.dtype[Any]]
SHOWN = 150  # characters of a library's error


class World:
    """The ranks of a run, as one of them sees them; this class itself is a run of one process.

    All ranks call the same methods in the same order. If another rank has ended, or does not call in time,
    they raise PeerError.

    Attributes
    ----------
    name : str
        Name of the library that connects the ranks.
    rank, size : int
        Number of this process, from 0, and the number of processes.
    first, alone : bool
        Whether this is rank 0; whether it is the only one.
    asynchronous : bool
        Whether `all_reduce` and `broadcast` take the engine's own arrays and return at once, because the
        library queues its work in the engine. If not, they take NumPy arrays, and return when it is done.
    """

    name, asynchronous = "none", False
    rank, size = 0, 1

    @property
    def first(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    @property
    def alone(self) -> bool:
        """Whether this is the only rank."""
        return self.size == 1

    def sum(self, vector: Any) -> Vector:
        """Return the sum over all ranks, float64, of the same shape; the same bits on each rank."""
        return np.asarray(vector, np.float64)

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in their order: anything that can be pickled."""
        return [value]

    def from_first(self, value: Any) -> Any:
        """Return rank 0's value: anything that can be pickled; those of other ranks are ignored."""
        return value

    def all_reduce(self, arrays: Iterable[Any]) -> None:
        """Replace each array by its sum over all ranks; shapes and dtypes are equal on all ranks.

        The sum of one array may begin before the next one is asked for.
        """

    def all_reduce_tensors(self, tensors: Sequence[Any]) -> None:
        """Replace each of PyTorch's tensors by its sum, on the device where it is."""

    def broadcast(self, arrays: Sequence[Any]) -> None:
        """Replace each array by rank 0's; shapes and dtypes are equal on all ranks."""

    def close(self) -> None:
        """Leave the other ranks."""


ALONE = World()


@contextmanager
def with_peers() -> Iterator[None]:
    """Raise PeerError if the library fails in the block, because another rank has ended or is late."""
    try:
        yield
    except RuntimeError as error:
        raise PeerError(
            "another process of the run has ended, or did not answer in time; if it failed, its own log says "
            f"why ({last_line(error)[:SHOWN]})"
        ) from error
