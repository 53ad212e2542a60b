"""The interface of a communication library. docs/distributed.md writes one for mpi4py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np

    Vector = np.ndarray[Any, np.dtype[Any]]


class Communicator(Protocol):
    """What connects the processes of a run: all of them call the same methods in the same order.

    Attributes
    ----------
    name : str
        Name of the library, for messages.
    rank, size : int
        Number of this process, from 0, and the number of processes.
    asynchronous : bool
        Whether `all_reduce` and `broadcast` take the engine's own arrays and return at once, because the
        library queues its work in the engine. If not, they take NumPy arrays and return when it is done.
    """

    name: str
    rank: int
    size: int
    asynchronous: bool

    def all_reduce(self, arrays: Sequence[Any]) -> None:
        """Replace each array by its sum over all ranks; shapes and dtypes are equal on all ranks."""

    def broadcast(self, arrays: Sequence[Any]) -> None:
        """Replace each array by rank 0's; shapes and dtypes are equal on all ranks."""

    def all_gather(self, vector: Vector) -> list[Vector]:
        """Return the vectors of all ranks, in their order.

        A vector has shape (n,) and dtype uint8, on the host; n is equal on all ranks. Other than the sums,
        this is called in a thread, and must not return before the vectors are there.
        """

    def close(self) -> None:
        """Leave the other ranks."""
