"""The predictions of all ranks."""

from __future__ import annotations

from typing import Any

from ...distributed import World

Piece = tuple[dict[str, Any], int]
"""The outputs for the samples of one device, NumPy arrays by name, and the number of samples."""


def gather_pieces(world: World, batches: list[list[Piece]]) -> list[list[Piece]]:
    """Return every batch's pieces, those of all ranks in their order; a piece for each device."""
    if world.alone:
        return batches
    names = next((list(outputs) for batch in batches for outputs, _ in batch), [])
    sizes = [[size for _, size in batch] for batch in batches]
    arrays = [outputs[name] for batch in batches for outputs, _ in batch for name in names]
    facts = world.gather_json([names, sizes], "the predictions")
    gathered = world.gather_arrays(arrays, "the predictions")
    every: list[list[Piece]] = [[] for _ in batches]
    for (own_names, own_sizes), values in zip(facts, map(iter, gathered)):
        for batch, devices in zip(every, own_sizes):
            batch += [({name: next(values) for name in own_names}, size) for size in devices]
    return every
