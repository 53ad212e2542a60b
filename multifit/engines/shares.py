"""Divide the samples of a batch among processes and devices."""

from dataclasses import dataclass
from typing import Any


class Shards(list[Any]):
    """A batch that is split already: a list of parts, one for each device or fewer, each a batch by itself.

    A loader may yield it, a `batchify_fn` return it, or a `batch_fn` make it. If batches are lists of parts,
    as gluonnlp's ShardedDataLoader yields them, use ``batch_fn=Shards``. If they hold, for each slot, a list
    with an array per device, use ``batch_fn=lambda batch: Shards(zip(*batch))``. Training on the parts gives
    the same numbers as on the whole batch, even if their sizes differ. Not to be confused with
    :class:`multifit.Sharded`, which wraps a loader that holds one process's part of the data.
    """


def shares(samples: int, devices: int) -> list[int]:
    """Split a number of samples over devices as evenly as possible; the first ones take what is left over.

    >>> shares(7, 2)
    [4, 3]
    >>> shares(1, 2)
    [1, 0]
    """
    each, rest = divmod(samples, devices)
    return [each + (i < rest) for i in range(devices)]


@dataclass(frozen=True)
class Slice:
    """A share of a batch that every process has read as a whole: each takes a slice, as devices do.

    `rank` is the number of this process, and `ranks` is the number of processes.
    """

    rank: int = 0
    ranks: int = 1

    @property
    def cuts_nothing(self) -> bool:
        """Whether this process takes all samples, because it is the only one."""
        return self.ranks == 1

    def cut(self, samples: int, devices: int) -> tuple[int, list[int]]:
        """Return the first sample of this process, and the number of samples for each of its devices.

        Samples are split over processes before devices, so that as many processes as possible get one.

        >>> Slice(1, 2).cut(7, devices=2)
        (4, [2, 1])
        """
        sizes = shares(samples, self.ranks)
        return sum(sizes[: self.rank]), shares(sizes[self.rank], devices)

    def total(self, samples: int) -> int | None:
        """Return the number of samples of the whole batch."""
        return samples


@dataclass(frozen=True)
class Part(Slice):
    """A share of a batch of which each process has read its own part only: the process takes all of that.

    `whole` is the number of samples of the whole batch; None if it is known only after summing over the
    processes.
    """

    whole: int | None = None

    def total(self, samples: int) -> int | None:
        """Return the number of samples of the whole batch, if it is known."""
        return self.whole


WHOLE = Slice()


@dataclass
class CurrentShare:
    """The share of the batch that was read last: set where batches are read, used where they are split."""

    share: Slice = WHOLE
