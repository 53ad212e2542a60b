"""Read PyTorch's DataLoader: in PyTorch's own order, with workers that are seeded for each batch.

PyTorch seeds its workers once in a pass, so that what a batch draws depends on those that its worker made
before; persistent workers are seeded once for all passes. Here, each batch is sent to its worker together
with a seed of its own. A run that resumes in the middle of an epoch then loads the rest of it alone.
"""

import copy
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch.utils import data as torch_data

from ..engines.loaders import Loaders
from ..utils.seeding import mixed

# They keep nothing from pass to pass but the state of their generator.
STATELESS = (
    torch_data.SequentialSampler,
    torch_data.RandomSampler,
    torch_data.SubsetRandomSampler,
    torch_data.WeightedRandomSampler,
)

_persistent: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()  # by loader: its copy, which has the workers


class TorchLoaders(Loaders):
    """Reads PyTorch's DataLoaders."""

    def reads(self, data: Any) -> bool:
        return isinstance(data, torch_data.DataLoader)

    def iterate(self, data: Any, seed: int | None) -> Iterator[Any]:
        return iter(data) if seed is None else self.in_order(data, data.batch_sampler, seed, 0)

    def seed_of_pass(self, data: Any, number: int | None) -> int | None:
        """Draw the seed of a pass from the loader's generator, where PyTorch's own iteration draws one.

        Samplers with a `set_epoch` get the number of the pass.
        """
        for sampler in _samplers(data):
            if number is not None and hasattr(sampler, "set_epoch"):
                sampler.set_epoch(number)
        if not self.has_order(data):
            return None
        return int(torch.empty((), dtype=torch.int64).random_(generator=data.generator))

    def has_order(self, data: Any) -> bool:
        """Whether batches are those that the batch sampler draws: not for streams, or for other iterators."""
        usual, kind = torch_data.DataLoader, type(data)
        if kind.__iter__ is not usual.__iter__ or kind._get_iterator is not usual._get_iterator:
            return False
        if data.batch_sampler is None or isinstance(data.dataset, torch_data.IterableDataset):
            return False
        try:
            len(data.batch_sampler)
        except (TypeError, NotImplementedError):  # it may never end
            return False
        return True

    def order(self, data: Any) -> list[Any]:
        return list(data.batch_sampler)

    def samples(self, data: Any) -> int:
        return len(data.dataset)

    def in_order(self, data: Any, order: Iterable[Any], seed: Any, first: int) -> Iterator[Any]:
        copied = _persistent.get(data)  # which may be empty, and so false
        copied = _copied(data) if copied is None else copied
        copied.generator.manual_seed(seed)  # so that the loader's own generator draws nothing more
        if data.num_workers:
            order = ((mixed(seed, n), samples) for n, samples in enumerate(order, first))
        copied.batch_sampler.batches = order
        yield from copied

    def is_divided(self, data: Any) -> bool:
        return any(isinstance(each, torch_data.DistributedSampler) for each in _samplers(data))

    def is_stateless(self, data: Any) -> bool:
        """Whether each pass is independent of previous ones: without generators or samplers of its own."""
        if any(getattr(each, "generator", None) is not None for each in (data, *_samplers(data))):
            return False
        if not self.has_order(data):
            return not data.persistent_workers
        usual = type(data.batch_sampler) is torch_data.BatchSampler
        return usual and type(data.batch_sampler.sampler) in STATELESS

    def draw(self, data: Any) -> None:
        if self.has_order(data):
            self.seed_of_pass(data, None)
            deque(data.batch_sampler, maxlen=0)
            return
        if not data.persistent_workers:
            data = copy.copy(data)
            data.num_workers = data.timeout = 0  # starts no processes
        order = getattr(iter(data), "_sampler_iter", ())  # iter() draws the seed of the workers
        if hasattr(data.sampler, "__len__"):  # that of an IterableDataset never ends
            deque(order, maxlen=0)

    @contextmanager
    def preserved(self, data: Any) -> Iterator[None]:
        generators = [getattr(each, "generator", None) for each in (data, *_samplers(data))]
        states = [(each, each.get_state()) for each in generators if each is not None]
        yield
        for each, state in states:
            each.set_state(state)

    def workers(self, data: Any) -> int:
        return int(data.num_workers)

    def repeats_workers(self, data: Any) -> bool:
        return self.has_order(data) or not data.persistent_workers  # which are seeded only once


LOADERS = TorchLoaders()


def _samplers(data: Any) -> Sequence[Any]:
    return data.sampler, data.batch_sampler, getattr(data.batch_sampler, "sampler", None)


def _copied(data: Any) -> Any:
    """Return a DataLoader that reads the same data in an order that it is given."""
    copied = copy.copy(data)
    changes = {"batch_sampler": _Order(), "generator": torch.Generator(), "_iterator": None}
    if data.num_workers:
        changes |= {"dataset": _Seeded(data.dataset), "worker_init_fn": _Start(data.worker_init_fn)}
    vars(copied).update(changes)  # the loader itself refuses changes
    if data.persistent_workers:
        _persistent[data] = copied
    return copied


@dataclass
class _Order:
    """Draws the batches that it is given."""

    batches: Iterable[Any] = field(default=())

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)


@dataclass
class _Seeded:
    """Loads the samples of a batch in a worker, whose generators get the seed that comes with them."""

    data: Any

    def __getitems__(self, batch: tuple[int, Any]) -> Any:  # pragma: no cover - runs in workers
        seed, samples = batch
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        if getattr(self.data, "__getitems__", None):
            return self.data.__getitems__(samples)
        return [self.data[sample] for sample in samples]


@dataclass
class _Start:
    """Starts a worker: the user's own function, which may look at the data set, finds that."""

    own: Callable[[int], Any] | None

    def __call__(self, worker: int) -> None:  # pragma: no cover - runs in workers
        info: Any = torch_data.get_worker_info()
        object.__setattr__(info, "dataset", info.dataset.data)  # which itself refuses changes
        if self.own is not None:
            self.own(worker)
