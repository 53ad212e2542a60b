"""Sum and copy NDArrays over the ranks, with any communicator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ...distributed import World
from ...protocols import Array
from ..compat import mx
from ..data.arrays import host_view, new_array, size_in_bytes

GROUP = 8 * 2**20  # bytes that are summed while the gradients of earlier layers are computed


def all_reduce(world: World, arrays: Sequence[Array]) -> None:
    """Replace each array by its sum over all ranks, which must have met just before.

    The last arrays are summed first, because the gradients of the last layers are computed first. If the
    communicator is asynchronous, the sums are queued like any operation; otherwise this waits for them.
    """
    if world.communicator.asynchronous:
        world.all_reduce(arrays)
        return
    with _on_host(world, arrays) as copies:
        groups = list(backward_groups(copies, GROUP))
        idle = len(groups) == 1
        if idle:  # all arrays are needed now: waiting once takes less time than for each of them
            mx.nd.waitall()
        world.all_reduce_groups([host_view(array, idle) for array in group] for group in groups)


def broadcast(world: World, arrays: Sequence[Array]) -> None:
    """Replace each array by that of rank 0; all ranks must have met just before."""
    if world.communicator.asynchronous:
        world.broadcast(arrays)
        return
    with _on_host(world, arrays) as copies:
        world.broadcast([host_view(array) for array in copies])


def backward_groups(arrays: Sequence[Array], most: int) -> Iterator[list[Array]]:
    """Yield the arrays from last to first, in groups of one dtype and of about `most` bytes."""
    group: list[Array] = []
    size = 0
    for array in reversed(arrays):
        if group and (size >= most or array.dtype != group[0].dtype):
            yield group
            group, size = [], 0
        group.append(array)
        size += size_in_bytes(array)
    if group:
        yield group


def from_first(world: World, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the first rank's arrays; those of other ranks are ignored."""
    forms = [[array.shape, array.dtype.name] for array in arrays] if world.first else None
    forms = world.gather_json(forms, "arrays of the first rank")[0]
    received = list(arrays) if world.first else [np.zeros(shape, dtype) for shape, dtype in forms]
    copies = [new_array(array, mx.cpu()) for array in received if array.size]
    broadcast(world, copies)
    values = iter(copies)
    return [next(values).asnumpy() if array.size else array for array in received]


@contextmanager
def _on_host(world: World, arrays: Sequence[Array]) -> Iterator[list[Any]]:
    """Yield copies of arrays on the CPU, then copy them back; empty if there is one rank.

    Arrays that are on the CPU are not copied.
    """
    copies = [] if world.alone else [array.as_in_context(mx.cpu()) for array in arrays]
    yield copies
    for array, copy in zip(arrays, copies):
        if copy is not array:
            copy.copyto(array)
