"""The order of the slots in the batches of a combined spec."""

from __future__ import annotations

from typing import Iterator, Mapping, Sequence

from ..errors import quoted

Orders = Mapping[str, Sequence[str]]


def merged_order(orders: Orders) -> list[str] | None:
    """Return every slot once, in an order that keeps each part's order; None if there is no such order.

    `orders` has the slots of each part's batches. The slots of the first part come as early as possible.
    """
    waiting, merged = [list(order) for order in orders.values()], list[str]()
    while any(waiting):
        heads = [order[0] for order in waiting if order]
        first = next((head for head in heads if all(head not in order[1:] for order in waiting)), None)
        if first is None:
            return None
        merged.append(first)
        waiting = [order[1:] if order[:1] == [first] else order for order in waiting]
    return merged


def order_messages(orders: Orders) -> Iterator[str]:
    """Yield a message if the orders of the parts' slots cannot be merged."""
    if merged_order(orders) is not None:
        return
    every = [slot for order in orders.values() for slot in order]
    shared = {part: [slot for slot in order if every.count(slot) > 1] for part, order in orders.items()}
    found = "; ".join(f"{part} has {quoted(slots)}" for part, slots in shared.items() if len(slots) > 1)
    message = f"combine: the parts' batches have the slots that they share in different orders: {found}"
    yield f"{message}; give each part a batch= with the same order, that of the loader"
