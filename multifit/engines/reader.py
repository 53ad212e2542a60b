"""Read loaders on every rank: the ranks divide each batch, and agree on whether there is another one."""

import zlib
from collections.abc import Callable, Iterator
from itertools import chain
from operator import index
from typing import Any

import numpy as np

from ..distributed import WAY_OUT, Sharded, World, unwrapped
from ..sampling import TaskLoaders
from ..spec.checks.data import loader_problems, no_batch_problems
from ..utils.errors import DataError, raise_problems, user_code
from ..utils.protocols import Loader
from .batch import CurrentShare, ReadShare, Slice, arrays_in, as_numpy
from .first_batches import Peeked
from .loaders import has_order, iterate, iterate_from, loaders_of, repeat, replay_epochs
from .task_reader import Read, TaskReader, nothing


class Reader:
    """Reads loaders for one stage; with a single rank, as they are.

    With several ranks, a batch of the user's loader is divided among them. For a DataLoader and for
    `multifit.batches`, the first rank draws the order of the samples, and each rank loads only its share of
    every batch. For any other loader, and for subclasses that iterate in their own way, each rank reads whole
    batches and takes its share. A :class:`Sharded` loader has been divided by the user.

    `current` is the share of the batch that was read last. A rank reads None for a batch of which it has no
    sample.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.current = CurrentShare()
        self._read: Read = iterate_from if world.alone else self._iterate
        self._of_tasks = TaskReader(world, self._read)

    def iterate(self, data: Loader, number: int | None = None) -> Iterator[Any]:
        """Iterate over a loader from its start; see :func:`multifit.engines.loaders.iterate`."""
        if self._world.alone and not isinstance(data, TaskLoaders):
            return iterate(data, number)
        return self.iterate_from(data, 0, nothing, number)

    def iterate_from(
        self, data: Loader, skip: int, before_rest: Callable[[], None], number: int | None = None
    ) -> Iterator[Any]:
        """Iterate over the rest of an epoch; see :func:`multifit.engines.loaders.iterate_from`."""
        if isinstance(data, TaskLoaders):
            return self._of_tasks.iterate(data, skip, before_rest, number)
        return self._read(data, skip, before_rest, number)

    def replay(self, data: Loader, epochs: int, seed_epoch: Callable[[int], None]) -> None:
        """Bring a loader to the state that it has after a number of epochs; see :func:`replay_epochs`."""
        if isinstance(data, TaskLoaders):
            self._of_tasks.replay(data, epochs, seed_epoch)
        else:
            replay_epochs(data, epochs, seed_epoch)

    def repeat(self, data: Loader) -> Iterator[Any]:
        """Iterate over a loader again and again, until a pass yields no batch."""
        return repeat(data)

    def peek(self, data: Loader, what: str) -> tuple[Peeked, Iterator[Any]]:
        """Return a loader's first batch with this rank's share; otherwise like :meth:`peek_first`."""
        raw, batches = self.peek_first(data, what)
        return Peeked(raw, self.current.share), batches

    def peek_first(
        self, data: Loader | Peeked, what: str, number: int | None = None
    ) -> tuple[Any, Iterator[Any]]:
        """Return a loader's first batch, and an iterator over all batches, including the first.

        `what` is the loader's name in messages; `number` is as for :meth:`iterate`. Raises DataError if
        `data` is not a loader, or is empty.
        """
        if isinstance(data, Peeked):
            self.current.share = data.share
            return data.raw, iter([data.raw])
        if not isinstance(data, TaskLoaders):  # several loaders were checked one by one
            raise_problems(loader_problems(what, data, once=True))
        batches = self.iterate(data, number)
        with user_code(lambda: what):
            for first in batches:
                return first, chain([first], batches)
        raise DataError(no_batch_problems(what))

    def workers(self, data: Any) -> int:
        """Return the number of processes that make a loader's batches, beside this one."""
        return loaders_of(unwrapped(data)).workers(unwrapped(data))

    def repeats_workers(self, data: Any) -> bool:
        """Whether a loader's workers, if it has any, draw the same random numbers in a resumed run."""
        return loaders_of(unwrapped(data)).repeats_workers(unwrapped(data))

    def _iterate(
        self, data: Any, skip: int, before_rest: Callable[[], None], number: int | None
    ) -> Iterator[Any]:
        if has_order(data):
            return self._in_order(data, skip, before_rest, number)
        batches = iterate_from(data, skip, before_rest, number)
        if isinstance(data, Sharded):
            return self._parts(batches)
        return self._slices(batches, len(data) if type(data) in (list, tuple) else None)

    def _in_order(
        self, data: Any, skip: int, before_rest: Callable[[], None], number: int | None
    ) -> Iterator[Any]:
        """Yield this rank's share of each batch of a loader whose order can be drawn."""
        loaders = loaders_of(data)
        seed = loaders.seed_of_pass(data, number)  # before the sampler draws
        order = self._agreed_order(data)
        shares = [self._share_of(samples) for samples in order]
        before_rest()
        done = sum(map(bool, shares[:skip]))
        batches = loaders.in_order(data, [samples for samples in shares[skip:] if samples], seed, done)
        for samples, share in zip(order[skip:], shares[skip:]):
            raw = next(batches) if share else None
            self.current.share = ReadShare(whole=len(samples))
            yield raw

    def _share_of(self, samples: list[int]) -> list[int]:
        first, (count,) = Slice(self._world.rank, self._world.size).cut(len(samples), devices=1)
        return samples[first : first + count]

    def _agreed_order(self, data: Any) -> list[list[int]]:
        """Return the samples of each batch, as the first rank draws them."""
        world = self._world
        loaders = loaders_of(data)
        lengths = world.gather(loaders.samples(data))
        if len(set(lengths)) > 1:
            found = ", ".join(f"{length} on rank {rank}" for rank, length in enumerate(lengths))
            raise DataError(
                f"the loader's data have different numbers of samples: {found}; make it from the "
                "same data on all ranks, or give multifit.Sharded(loader) if each process has a part of "
                "its own"
            )
        drawn = [list(map(_index, batch)) for batch in loaders.order(data)] if world.first else []
        order: list[list[int]] = world.from_first(drawn)
        return order

    def _slices(self, batches: Iterator[Any], length: int | None) -> Iterator[Any]:
        """Yield batches that every rank has as a whole.

        `length` is the length of a list of batches, None for other loaders, of which the ranks compare
        whether there is another batch.
        """
        share = Slice(self._world.rank, self._world.size)
        first = True
        for raw in chain(batches, [None]):
            if first or length is None:
                self._compare(raw, length, first)
            if raw is None:
                return
            first = False
            self.current.share = share
            yield raw

    def _compare(self, raw: Any, length: int | None, first: bool) -> None:
        """Raise DataError unless either all ranks have a batch or none has, and the first batch is equal."""
        number = None if raw is None else _checksum(raw) if first else 0
        numbers, lengths = zip(*self._world.gather((number, length)))
        ended = [str(rank) for rank, number in enumerate(numbers) if number is None]
        if 0 < len(ended) < len(numbers):
            raise DataError(
                f"the loader ended on rank {', '.join(ended)}, and yields more on others; {WAY_OUT}"
            )
        if len(set(numbers)) > 1:
            raise DataError(
                "the loader's first batch is not the same on all ranks, which each take their share of "
                f"it; {WAY_OUT}"
            )
        if len(set(lengths)) > 1:
            found = ", ".join(f"{length} on rank {rank}" for rank, length in enumerate(lengths))
            raise DataError(f"the loader has different numbers of batches: {found}; {WAY_OUT}")

    def _parts(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield batches that are this rank's parts; None while other ranks still have batches."""
        while True:
            raw = next(batches, None)
            if not self._world.sum(raw is not None):
                return
            self.current.share = ReadShare()
            yield raw


def _index(sample: Any) -> int:
    try:
        return index(sample)  # of a number, also NumPy's or in a tensor
    except TypeError:
        raise DataError(
            f"the DataLoader's sampler yields {type(sample).__name__}, but only indices of samples can be "
            f"divided among processes; {WAY_OUT}"
        ) from None


def _checksum(raw: Any) -> int:
    """Return a checksum of a batch's arrays."""
    arrays: Any = arrays_in(raw, 0, as_numpy)
    total = 0
    for array in arrays.values() if isinstance(arrays, dict) else arrays:
        if hasattr(array, "shape"):
            total = zlib.crc32(np.ascontiguousarray(array).tobytes(), total)
    return total
