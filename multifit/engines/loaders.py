"""Iterate over a loader: from its start, from the middle of an epoch, or again and again."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary

from ..array_batches import ArrayBatches
from ..distributed import unwrapped
from ..utils.protocols import Loader
from ..utils.seeding import state_hash

# Each module has LOADERS, which reads the loaders of a library; it is imported once the library is.
MODULES = {"mxnet": "multifit.gluon.data.loaders", "torch": "multifit.torch.loaders"}

_passes: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # by loader: the last number counted here


class Loaders:
    """How some loaders are read; this one reads any iterable of batches from its start.

    A loader that :meth:`has_order` draws the samples of each batch of a pass by :meth:`order`, without
    loading them, and loads batches of given samples by :meth:`in_order`. Each pass begins with
    :meth:`seed_of_pass`.
    """

    def reads(self, data: Any) -> bool:
        """Whether this reads a loader."""
        return True

    def iterate(self, data: Any, seed: int | None) -> Iterator[Any]:
        """Return a loader's batches from its start; `seed` comes from :meth:`seed_of_pass`."""
        if callable(getattr(data, "reset", None)):
            data.reset()
        return iter(data)

    def seed_of_pass(self, data: Any, number: int | None) -> int | None:
        """Return the seed from which a loader's workers are seeded in a pass; None if they cannot be seeded.

        `number` is as for :func:`iterate`.
        """
        return None

    def has_order(self, data: Any) -> bool:
        """Whether the order of a loader's batches can be drawn without loading them."""
        return False

    def order(self, data: Any) -> list[Any]:
        """Draw the order of a pass: the samples of each batch."""
        raise NotImplementedError  # pragma: no cover - it has no order

    def samples(self, data: Any) -> int:
        """Return the number of samples of a loader that has an order."""
        raise NotImplementedError  # pragma: no cover - it has no order

    def in_order(self, data: Any, order: Iterable[Any], seed: int | None, first: int) -> Iterator[Any]:
        """Yield the batches of the samples in `order`, of which the first is number `first` of its pass."""
        raise NotImplementedError  # pragma: no cover - it has no order

    def is_divided(self, data: Any) -> bool:
        """Whether a loader yields the part of one process, so that it is to be given as :class:`Sharded`."""
        return False

    def is_stateless(self, data: Any) -> bool:
        """Whether each pass over a loader is independent of the previous ones, as is usual."""
        return True

    def draw(self, data: Any) -> None:
        """Draw what a pass over a loader draws, without loading its batches."""

    def preserved(self, data: Any) -> AbstractContextManager[None]:
        """Return a context manager after which a loader's samplers are as before, whatever it has yielded."""
        return nullcontext()

    def workers(self, data: Any) -> int:
        """Return the number of processes that make a loader's batches, beside this one."""
        return 0

    def repeats_workers(self, data: Any) -> bool:
        """Whether a loader's workers, if it has any, draw the same random numbers in a resumed run."""
        return True


class _Arrays(Loaders):
    """Reads `multifit.batches`."""

    def reads(self, data: Any) -> bool:
        return isinstance(data, ArrayBatches)

    def has_order(self, data: Any) -> bool:
        return True

    def order(self, data: Any) -> list[Any]:
        return list(data.order())

    def samples(self, data: Any) -> int:
        return int(data.samples)

    def in_order(self, data: Any, order: Iterable[Any], seed: int | None, first: int) -> Iterator[Any]:
        return iter(data.in_order(order))


_ANY, _ARRAYS = Loaders(), _Arrays()


def loaders_of(data: Any) -> Loaders:
    """Return what reads a loader; a library's loaders can only exist if the library is imported."""
    for library, module in MODULES.items():
        if sys.modules.get(library) is not None:
            loaders: Loaders = import_module(module).LOADERS
            if loaders.reads(data):
                return loaders
    return _ARRAYS if _ARRAYS.reads(data) else _ANY


def iterate(data: Loader, number: int | None = None) -> Iterator[Any]:
    """Return an iterator over a loader from its start; nothing is drawn or read before its first batch.

    A DataIter begins a new pass. A Gluon DataLoader over arrays is read by index, and worker processes of a
    DataLoader are seeded. `number` is the number of this pass in its run, such as the epoch; see
    :func:`pass_seed`.
    """
    data = unwrapped(data)
    loaders = loaders_of(data)
    # so that a batch passes through no generator but the loader's
    return chain.from_iterable(loaders.iterate(data, loaders.seed_of_pass(data, number)) for _ in range(1))


def iterate_from(
    data: Loader, skip: int, before_rest: Callable[[], None], number: int | None = None
) -> Iterator[Any]:
    """Iterate over the rest of an epoch, without its first `skip` batches.

    The skipped batches of a loader that has an order are drawn, but not loaded. `before_rest` is called after
    the skipped batches, before the next one is loaded. `number` is the number of the pass, as for
    :func:`iterate`.
    """
    loader: Any = unwrapped(data)
    loaders = loaders_of(loader)
    if loaders.has_order(loader):
        seed = loaders.seed_of_pass(loader, number)  # before the sampler draws
        order = loaders.order(loader)[skip:]
        before_rest()
        yield from loaders.in_order(loader, order, seed, skip)
        return
    batches = iterate(loader)
    for _ in range(skip):
        next(batches, None)
    before_rest()
    yield from batches


def has_order(data: Any) -> bool:
    """Whether the order of a loader's batches can be drawn without loading them."""
    return loaders_of(data).has_order(data)


def pass_seed(data: Any, number: int | None) -> int:
    """Return the number from which the seeds of a pass over the data are derived; draws no random numbers.

    It depends on NumPy's random state, so that ``np.random.seed`` or the run's seed make a run repeatable,
    including its workers. It also depends on the pass's `number` in its run, because a loader that does not
    shuffle leaves the random state as it is; by default, the calls for this loader are counted.
    """
    if number is None:
        number = _passes[data] = _passes.get(data, -1) + 1
    return state_hash(number)


def repeat(data: Loader) -> Iterator[Any]:
    """Iterate over a loader again and again, until a pass yields no batch."""
    empty = False
    while not empty:
        empty = True
        for batch in iterate(data):
            empty = False
            yield batch


def replay_epochs(data: Loader, epochs: int, seed_epoch: Callable[[int], None]) -> None:
    """Bring a loader to the state that it has after a number of epochs.

    That matters for a sampler that shuffles the order of the previous epoch, or that carries samples over to
    the next epoch, and for PyTorch's loaders with a generator of their own. Only streams with persistent
    workers load batches. ``seed_epoch(epoch)`` seeds the generators as at the start of that epoch.
    """
    loader: Any = unwrapped(data)
    loaders = loaders_of(loader)
    for epoch in range(epochs) if not loaders.is_stateless(loader) else ():
        seed_epoch(epoch)
        loaders.draw(loader)
