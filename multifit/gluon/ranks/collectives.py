"""Sum and copy NDArrays over the ranks, with any library."""

from collections.abc import Sequence
from typing import Any

from ...distributed import World
from ...utils.protocols import Array
from ..compat import mx
from ..data.arrays import host_view, size_in_bytes

LITTLE = 8 * 2**20  # bytes: it is faster to wait once for arrays of so few than for each of them


def all_reduce(world: World, arrays: Sequence[Array]) -> None:
    """Replace each array by its sum over all ranks.

    The last arrays are summed first, because the gradients of the last layers are computed first. If the
    world is asynchronous, the sums are queued like any operation; otherwise this waits for them.
    """
    if world.alone:
        return
    if world.asynchronous:
        world.all_reduce(arrays)
        return
    copies = [array.as_in_context(mx.cpu()) for array in arrays]  # those on the CPU are not copied
    idle = sum(map(size_in_bytes, copies)) <= LITTLE
    if idle:
        mx.nd.waitall()
    world.all_reduce(host_view(array, idle) for array in reversed(copies))
    _copy_back(arrays, copies)


def broadcast(world: World, arrays: Sequence[Array]) -> None:
    """Replace each array by that of rank 0."""
    if world.alone:
        return
    if world.asynchronous:
        world.broadcast(arrays)
        return
    copies = [array.as_in_context(mx.cpu()) for array in arrays]  # those on the CPU are not copied
    world.broadcast([host_view(array) for array in copies])
    _copy_back(arrays, copies)


def _copy_back(arrays: Sequence[Array], copies: Sequence[Any]) -> None:
    for array, copy in zip(arrays, copies):
        if copy is not array:
            copy.copyto(array)
