"""Sum and copy NDArrays over the ranks, with any library."""

from collections.abc import Sequence
from typing import Any

from ...distributed import World
from ...protocols import Array
from ..compat import mx
from ..data.arrays import host_view, size_in_bytes
from ..data.batch import Batch

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


class Normalizers:
    """Adds up a batch's normalizers over the ranks; with one rank, returns them as they are."""

    def __init__(self, world: World) -> None:
        self._world = world

    def add_up(self, batch: Batch, own: dict[str, Any]) -> dict[str, Any]:
        """Return the sums over the ranks of normalizers by name: numbers, or arrays of shape (1,).

        Also sets the batch's total number of samples, unless it is known. If there are normalizers, or the
        total is not known, all ranks must call this with the same names.
        """
        if self._world.alone or (batch.total is not None and not own):
            return own
        values = [*own.values()] if batch.total is not None else [*own.values(), float(batch.samples)]
        sums = self._queued(batch, values) if self._world.asynchronous else self._read(values)
        if batch.total is None:
            batch.total = round(_number(sums[-1]))
        return dict(zip(own, sums))

    def _read(self, values: list[Any]) -> list[float]:
        return [float(value) for value in self._world.sum(list(map(_number, values)))]

    def _queued(self, batch: Batch, values: list[Any]) -> list[Any]:
        """Sum on the device, without waiting for it."""
        context = batch.contexts[0] if batch.contexts else mx.cpu()
        vector = mx.nd.concat(*[_array(value, context) for value in values], dim=0)
        self._world.all_reduce([vector])
        return [vector[i : i + 1] for i in range(len(values))]


def _number(value: Any) -> float:
    return float(value.asscalar()) if isinstance(value, mx.nd.NDArray) else float(value)


def _array(value: Any, context: Any) -> Any:
    if isinstance(value, mx.nd.NDArray):
        return value.reshape((1,)).astype("float64").as_in_context(context)
    return mx.nd.full((1,), value, ctx=context, dtype="float64")
