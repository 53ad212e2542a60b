"""A batch on its devices, and its layout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...protocols import Context, Slots
from ..compat import mx
from .arrays import Signature, signature_of


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

    def devices(self) -> Iterator[tuple[Context, Slots, int]]:
        """Yield the context, the slots and the number of samples of each device, with its context entered."""
        for context, slots, size in zip(self.contexts, self.slots, self.sizes):
            with context:
                yield context, slots, size

    @property
    def is_reused(self) -> bool:
        """Whether later batches may overwrite the arrays: MXNet's iterators reuse their memory."""
        return isinstance(self.raw, mx.io.DataBatch)


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
