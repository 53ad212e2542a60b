"""Sums and copies of NDArrays over the ranks, whatever the communicator takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

from ...distributed import World
from ...protocols import Array
from ..compat import mx
from .host_memory import host_view


def all_reduce(world: World, arrays: Sequence[Array]) -> None:
    """Replace each array by its sum over all ranks, which must have met just before.

    Where the communicator is asynchronous, the sums are queued like any operation; else this waits for them.
    """
    _on_host(world, world.all_reduce, arrays)


def broadcast(world: World, arrays: Sequence[Array]) -> None:
    """Replace each array by rank 0's; all ranks must have met just before."""
    _on_host(world, world.broadcast, arrays)


def _on_host(world: World, function: Callable[[Sequence[Any]], None], arrays: Sequence[Array]) -> None:
    if world.alone or not arrays:
        return
    if world.communicator.asynchronous:
        function(arrays)
        return
    on_host = [array.as_in_context(mx.cpu()) for array in arrays]  # the array itself if it is there
    function([host_view(array) for array in on_host])
    for array, copy in zip(arrays, on_host):
        if copy is not array:
            copy.copyto(array)
