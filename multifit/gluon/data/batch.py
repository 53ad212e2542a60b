"""A batch on its devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ...engines import batch
from ...utils.protocols import Context, Slots
from .arrays import Signature


@dataclass
class Batch(batch.Batch):
    """A batch, split over the devices of this process.

    `contexts`, `slots` and `sizes` have an item for each device that got samples: its context, its arrays by
    slot, its number of samples. `signature` is that of the slots, if it is known and there is one device.
    """

    contexts: list[Context] = field(default_factory=list)
    slots: list[Slots] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    signature: Signature | None = None

    def devices(self) -> Iterator[tuple[Context, Slots, int]]:
        """Yield the context, the slots and the number of samples of each device, with its context entered."""
        for context, slots, size in zip(self.contexts, self.slots, self.sizes):
            with context:
                yield context, slots, size

    def map_slots(self, change: Callable[[Slots], Slots]) -> None:
        """Replace the slots of each device."""
        self.slots = [change(slots) for slots in self.slots]
