"""A batch on its devices, its layout, and the share of it that belongs to this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...protocols import Context, Slots
from ..compat import mx
from .arrays import Signature, samples, signature_of
from .devices import shares


class Shards(list[Any]):
    """A batch that is split already: a list of parts, one for each device or fewer, each a batch by itself.

    A loader may yield it, a `batchify_fn` return it, or a `batch_fn` make it. If batches are lists of parts,
    as gluonnlp's ShardedDataLoader yields them, use ``batch_fn=Shards``. If they hold, for each slot, a list
    with an array per device, use ``batch_fn=lambda batch: Shards(zip(*batch))``. Training on the parts gives
    the same numbers as on the whole batch, even if their sizes differ. Not to be confused with
    :class:`multifit.Sharded`, which wraps a loader that holds one process's part of the data.
    """


@dataclass
class Batch:
    """A batch, split over the devices of this process.

    `raw` is what the loader yielded. `samples` is this process's number of samples; `total` is that of all
    processes that train together, None until it has been summed. `contexts`, `slots` and `sizes` have an item
    for each device that got samples: its context, its arrays by slot, its number of samples along `axis`.
    `signature` is that of the slots, if it is known and there is one device. `absent` names the slots that
    the batch lacks; their arrays are None.
    """

    raw: object
    samples: int
    contexts: list[Context] = field(default_factory=list)
    slots: list[Slots] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    signature: Signature | None = None
    axis: int = 0
    total: int | None = None
    absent: frozenset[str] = frozenset()

    @property
    def is_reused(self) -> bool:
        """Whether later batches may overwrite the arrays: MXNet's iterators reuse their memory."""
        return isinstance(self.raw, mx.io.DataBatch)

    def first(self, count: int) -> Batch:
        """Return the first samples of a batch on one device; `raw` and `signature` stay those of all."""
        size = min(count, self.sizes[0])
        slots: dict[str, Any] = {
            name: None if array is None else samples(array, slice(size), self.axis)
            for name, array in self.slots[0].items()
        }
        return replace(self, samples=size, sizes=[size], slots=[slots])


@dataclass(frozen=True)
class BatchLayout:
    """Says which array of a batch that is a list of NDArrays is which slot; and the slots' signature."""

    positions: tuple[tuple[str, int], ...]
    signature: Signature
    samples: int

    def slots(self, raw: Sequence[Any], context: Context) -> Slots:
        """Return a batch's arrays by slot, on a device."""
        return {name: raw[i].as_in_context(context) for name, i in self.positions}


def signature_of_list(raw: Any) -> Signature | None:
    """Return the signature of a list or tuple of NDArrays; None for any other batch."""
    if type(raw) not in (list, tuple) or not raw or any(type(a) is not mx.nd.NDArray for a in raw):
        return None
    return signature_of(raw)


def layout_of(raw: Sequence[Any], slots: Mapping[str, Any], batch_axis: int) -> BatchLayout | None:
    """Return the layout of a batch; `slots` are its arrays, or some of them, by slot.

    Returns None if the batch holds the same array twice: in the next batch, these may be two arrays.
    """
    positions = {id(array): i for i, array in enumerate(raw)}
    if len(positions) < len(raw):
        return None
    order = tuple((name, positions[id(array)]) for name, array in slots.items())
    return BatchLayout(order, signature_of(slots.values()), next(iter(slots.values())).shape[batch_axis])


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
