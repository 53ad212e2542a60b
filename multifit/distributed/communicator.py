"""The interface of a communication library. docs/distributed.md writes one for mpi4py."""

from __future__ import annotations

from collections.abc import Sequence
from threading import TIMEOUT_MAX
from typing import TYPE_CHECKING, Annotated, Any, Protocol, runtime_checkable

from ..arguments import Valid, bounds

if TYPE_CHECKING:
    from .header import Vector


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
        library queues its work in the engine. If not, they take NumPy arrays, and return when it is done.
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
        """Return the vectors of all ranks in their order, once all ranks have called this.

        A vector has shape (n,) and dtype uint8, on the host; n is equal on all ranks. This method, and all
        methods of a communicator that is not asynchronous, are called in a separate thread.
        """

    def close(self) -> None:
        """Leave the other ranks."""


CALLED_BY_SEVERAL = ("all_reduce", "broadcast", "all_gather", "close")  # not called if there is only one rank
MEMBERS = ("name", "rank", "size", "asynchronous", *CALLED_BY_SEVERAL)


def is_communicator(value: object) -> bool:
    """Whether an object has all members of a Communicator."""
    return all(hasattr(value, member) for member in MEMBERS)


Seconds = Annotated[float, bounds(above=0, below=TIMEOUT_MAX)]
AnyCommunicator = Annotated[Any, Valid(f"an object with {', '.join(MEMBERS)}", is_communicator)]
"""The annotation of an argument that is a Communicator."""


@runtime_checkable
class Notes(Protocol):
    """Optional methods of a communicator: notes that a rank can leave and read while other ranks hang."""

    def leave_note(self, text: str) -> None:
        """Leave a note with this text, as this rank."""

    def read_notes(self, text: str) -> list[int]:
        """Return the ranks that left a note with this text."""
