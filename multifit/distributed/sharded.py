"""Loaders that are divided among the processes already."""

from collections.abc import Iterator
from typing import Any

WAY_OUT = (
    "give Gluon's or PyTorch's own DataLoader or multifit.batches(...), which multifit divides, or "
    "multifit.Sharded(...) if each process has its own part"
)


class Sharded:
    """A loader of which each process has its own part; a whole batch consists of all processes' batches.

    multifit divides any other loader among the processes: see ``MultiEstimator(world=)``. Parts may differ in
    the number and the sizes of their batches. In a single process, this is the loader itself. Not to be
    confused with :class:`multifit.Shards`, which is one batch in parts for the devices of a process.

    Parameters
    ----------
    loader : DataLoader, DataIter or re-iterable of batches
        Such as ``ImageRecordIter(..., num_parts=world.size, part_index=world.rank)``.
    """

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)


def unwrapped(data: Any) -> Any:
    """Return the loader in a :class:`Sharded`; any other as it is."""
    return data.loader if isinstance(data, Sharded) else data
