"""A batch on its devices, and which array of a batch is which slot."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping, Sequence

from ...protocols import Context, Slots
from ..compat import mx
from .arrays import Signature, signature_of


class Shards(list[Any]):
    """A batch that is split already: a list of parts, one for each device or fewer, each a batch by itself.

    A loader may yield it, a `batchify_fn` return it, or a `batch_fn` make it: ``batch_fn=Shards`` for batches
    of parts, as gluonnlp's ShardedDataLoader yields them; ``batch_fn=lambda batch: Shards(zip(*batch))`` for
    lists of one array per device for each slot. The parts train as the whole batch does, however unequal.
    Not to be mistaken for :class:`multifit.Sharded`, a loader of which each process has a part.
    """


@dataclass
class Batch:
    """A batch, split over the devices of this process.

    `raw` is what the loader yielded. `samples` are those of this process; `total` are those of all processes
    that train together, None until they have been added up. `contexts`, `slots` and `sizes` have an item for
    each device that got samples: its context, its arrays by slot, its number of samples along `axis`.
    `signature` is that of the slots, if it is known and there is one device. `absent` are slots that the
    batch lacks, and that are None.
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
        """Whether other values may be written into the arrays: MXNet's iterators reuse their memory."""
        return isinstance(self.raw, mx.io.DataBatch)


@dataclass(frozen=True)
class BatchLayout:
    """Which array of a batch, a list of NDArrays, is which slot, and the slots' signature."""

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
    """Return the layout of a batch whose arrays, or some of them, are these slots.

    None if the batch holds one array twice: its slots could be two arrays in the next batch.
    """
    positions = {id(array): i for i, array in enumerate(raw)}
    if len(positions) < len(raw):
        return None
    order = tuple((name, positions[id(array)]) for name, array in slots.items())
    return BatchLayout(order, signature_of(slots.values()), next(iter(slots.values())).shape[batch_axis])
