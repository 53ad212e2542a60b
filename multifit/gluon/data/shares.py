"""Which samples of a batch are this process's, where several processes train together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from .devices import shares


@dataclass(frozen=True)
class Slice:
    """A batch that every process has as a whole: each takes its share of the samples, as a device does.

    `rank` is the number of this process, and `ranks` how many there are.
    """

    rank: int = 0
    ranks: int = 1

    @property
    def cuts_nothing(self) -> bool:
        """Whether this process takes all samples that there are."""
        return self.ranks == 1

    def cut(self, samples: int, devices: int) -> tuple[int, list[int]]:
        """Return the first sample of this process, and the number of samples of each of its devices.

        As many processes as possible get a sample, whatever their devices.

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
    """A part of a batch that is this process's already, which takes all of it.

    `whole` is the number of samples of the whole batch; None if it is known only after summing over the
    processes.
    """

    whole: int | None = None

    def total(self, samples: int) -> int | None:
        """Return the number of samples of the whole batch, if it is known."""
        return self.whole


Share = Union[Slice, Part]
WHOLE = Slice()


@dataclass
class CurrentShare:
    """The share of the batch that was read last: set where batches are read, used where they are split."""

    share: Share = WHOLE
