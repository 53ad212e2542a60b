"""Add up the normalizers of a batch over the ranks."""

from __future__ import annotations

from typing import Any

from ...distributed import World
from ..compat import mx
from ..data.batch import Batch
from .collectives import all_reduce


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
        values = list(own.values())
        if batch.total is None:
            values.append(float(batch.samples))
        sums = self._queued(batch, values) if self._world.communicator.asynchronous else self._met(values)
        if batch.total is None:
            batch.total = round(_number(sums.pop()))
        return dict(zip(own, sums))

    def _met(self, values: list[Any]) -> list[Any]:
        return list(map(float, self._world.sum([_number(value) for value in values])))

    def _queued(self, batch: Batch, values: list[Any]) -> list[Any]:
        """Sum in the engine, without waiting for it."""
        context = batch.contexts[0] if batch.contexts else mx.cpu()
        arrays = [_array(value, context) for value in values]
        vector = mx.nd.concat(*arrays, dim=0)
        all_reduce(self._world, [vector])
        return [vector[i : i + 1] for i in range(len(values))]


def _number(value: Any) -> float:
    return float(value.asscalar()) if isinstance(value, mx.nd.NDArray) else float(value)


def _array(value: Any, context: Any) -> Any:
    if isinstance(value, mx.nd.NDArray):
        return value.reshape((1,)).astype("float64").as_in_context(context)
    return mx.nd.full((1,), value, ctx=context, dtype="float64")
