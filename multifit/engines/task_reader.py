"""Read several loaders as one, in the order of a schedule; a loader that has ended begins again."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any

from ..distributed import World, unwrapped
from ..sampling import TaskBatch, TaskLoaders
from ..spec.checks.data import no_batch_problems
from ..utils.errors import DataError
from ..utils.protocols import Loader
from ..utils.seeding import READ, mixed, preserve_rng, random_state, seed_order, set_random_state, state_hash
from ..utils.text import counted
from .loaders import has_order, replay_epochs

Read = Callable[..., Iterator[Any]]
"""``read(loader, skip, before_rest, number)`` yields the rest of a pass over one loader."""


class TaskReader:
    """Reads :class:`TaskLoaders` batch by batch; `read` reads each single loader.

    Each pass over a loader draws the order of its samples from its own seed, which is derived from NumPy's
    random state at the beginning of the epoch. So a run that resumes in the middle of an epoch draws the same
    orders. It does not load batches that were done before, if the loader's sampler draws the order. To a
    loader, each pass is an epoch; with each epoch of the run, all loaders start a new pass.
    """

    def __init__(self, world: World, read: Read) -> None:
        self._world, self._read = world, read

    def iterate(
        self, data: TaskLoaders, skip: int, before_rest: Callable[[], None], number: int | None
    ) -> Iterator[TaskBatch]:
        """Iterate over the rest of an epoch, without its first `skip` updates.

        `before_rest` is called before the first batch. `number` is the number of the epoch. Loaders without a
        `sampling` are read one after the other, each once.
        """
        if data.sampling is None:
            yield from self._in_turn(data, number)
            return
        epoch = number or 0
        seed = self._seed(epoch)
        updates = data.updates(seed, epoch)
        taken = dict.fromkeys(data.loaders, 0)
        for update in updates[:skip]:
            for name in update:
                taken[name] += 1
        data.taken = dict(taken)
        passes = {
            name: _Passes(name, loader, data.sizes[name], mixed(seed, READ, position), self._read)
            for position, (name, loader) in enumerate(data.loaders.items())
        }
        for name, count in taken.items():
            passes[name].skip(count)
        before_rest()
        for update in updates[skip:]:
            batches = {}
            for name in update:
                batches[name] = passes[name].next(taken[name])
                taken[name] += 1
            data.taken = dict(taken)  # a new one, as batches may be read ahead of their training
            yield TaskBatch(batches)

    def replay(self, data: TaskLoaders, epochs: int, seed_epoch: Callable[[int], None]) -> None:
        """Bring loaders to the state that they have after a number of epochs; see :func:`replay_epochs`."""
        for epoch in range(epochs):
            seed_epoch(epoch)
            seed = self._seed(epoch)
            for position, (name, loader) in enumerate(data.loaders.items()):
                passes = -(-data.counts[name] // data.sizes[name])
                with preserve_rng():
                    replay_epochs(loader, passes, partial(_seed_pass, mixed(seed, READ, position)))

    def _in_turn(self, data: TaskLoaders, number: int | None) -> Iterator[TaskBatch]:
        for name, loader in data.loaders.items():
            is_empty = True
            for batch in islice(self._read(loader, 0, nothing, number), data.most):
                is_empty = False
                yield TaskBatch({name: batch})
            if is_empty:
                raise DataError(no_batch_problems(f'the loader "{name}"'))

    def _seed(self, epoch: int) -> int:
        """Return the seed of an epoch's order, the same on all ranks; draws no random numbers."""
        return int(self._world.from_first(state_hash(epoch)))


class _Passes:
    """The passes of an epoch over one loader."""

    def __init__(self, name: str, loader: Loader, size: int, seed: int, read: Read) -> None:
        self._name, self._loader, self._size, self._seed, self._read = name, loader, size, seed, read
        self._has_order = has_order(unwrapped(loader))
        self._batches: Iterator[Any] | None = None

    def skip(self, taken: int) -> None:
        """Bring the loader to where it is after `taken` batches.

        If its sampler draws the order, the current pass is begun later, by :meth:`next`.
        """
        number, done = divmod(taken, self._size)
        with preserve_rng():
            replay_epochs(self._loader, number, partial(_seed_pass, self._seed))
        if done and not self._has_order:
            self._begin(number, 0)
            deque(islice(self._batches or (), done - 1), maxlen=0)

    def next(self, taken: int) -> Any:
        """Return the batch that follows `taken` batches of the epoch; raises DataError if there is none."""
        number, done = divmod(taken, self._size)
        if self._batches is None or not done:
            batch = self._begin(number, done)
        else:
            batch = next(self._batches, _ENDED)
        if batch is _ENDED:
            raise DataError(self._ended(number, done))
        return batch

    def _begin(self, number: int, done: int) -> Any:
        """Begin a pass and return its first batch; if the order is drawn, skip the batches that are done."""
        with _seeded(self._seed, number) as leave:
            # `leave` is called when the order is drawn
            self._batches = self._read(self._loader, done, leave if self._has_order else nothing, number)
            return next(self._batches, _ENDED)

    def _ended(self, number: int, done: int) -> str:
        length = counted(self._size, "batch", "batches")
        if number and not done:
            return (
                f'the loader "{self._name}" yields no batch in pass {number + 1} of the epoch: it can be '
                "read only once; give a DataLoader or a list"
            )
        return (
            f'the loader "{self._name}" ended after {counted(done, "batch", "batches")}, and its length is '
            f"{length}; give one whose length is the number of batches that it yields"
        )


@contextmanager
def _seeded(seed: int, number: int) -> Iterator[Callable[[], None]]:
    """Seed the generators of orders within the block, or until the yielded function is called."""
    before = [random_state()]

    def leave() -> None:
        if before:
            set_random_state(before.pop())

    _seed_pass(seed, number)
    try:
        yield leave
    finally:
        leave()


def _seed_pass(seed: int, number: int) -> None:
    """Seed the generators for a pass over a loader."""
    seed_order(mixed(seed, number))


def nothing() -> None:
    """Do nothing."""


_ENDED = object()
