"""A batch on its devices."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...protocols import Context, Shape, Slots

__all__ = ["Batch"]


@dataclass
class Batch:
    """A batch, split over the devices.

    `raw` is what the loader yielded. `contexts`, `slots` and `sizes` have an item for each device that got
    samples: its context, its arrays by slot, its number of samples. `shapes` are those of the slots, if they
    are known and there is one device.
    """

    raw: object
    samples: int
    contexts: list[Context] = field(default_factory=list)
    slots: list[Slots] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    shapes: tuple[Shape | None, ...] | None = None
