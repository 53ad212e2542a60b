"""PyTorch's DataLoader is read in PyTorch's order, from the middle of an epoch, and by several ranks."""

import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)

from multifit import DataError, Sharded
from multifit.distributed import ALONE
from multifit.engines.loaders import iterate, iterate_from, loaders_of, replay_epochs
from multifit.engines.reader import Reader
from multifit.estimator.data import rank_problems
from multifit.sampling import Proportional, TaskLoaders
from multifit.utils.seeding import random_state, set_random_state
from tests.common.ranks import run_ranks

SIZE = 11
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


class Noisy(Dataset[Any]):
    """Samples to which Python, NumPy and torch add noise; knows which of them were loaded here."""

    def __init__(self, size: int = SIZE) -> None:
        self.size, self.loaded = size, list[int]()

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, place: int) -> list[float]:
        self.loaded.append(int(place))
        return [float(place), random.random(), np.random.rand(), float(torch.rand(()))]


class Whole(Noisy):
    """Loads the samples of a batch at once."""

    def __getitems__(self, places: list[int]) -> list[list[float]]:
        return [self[place] for place in places]


class Stream(IterableDataset[Any]):
    """Yields numbers."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(SIZE))


class Backwards(DataLoader[Any]):
    """Yields its batches in its own way."""

    def __iter__(self) -> Any:
        return reversed(list(super().__iter__()))


class Endless:
    """Draws batches without an end."""

    def __iter__(self) -> Iterator[list[int]]:
        while True:
            yield [0, 1]


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(7)


def sampled() -> DataLoader[Any]:
    batches = BatchSampler(RandomSampler(range(SIZE), generator=seeded()), 3, False)
    return DataLoader(Noisy(), batch_sampler=batches)


WORKERS: dict[str, Any] = {"num_workers": 2, "batch_size": 2}
PERSISTENT: dict[str, Any] = {**WORKERS, "persistent_workers": True, "shuffle": True}
LOADERS: dict[str, Callable[[], Any]] = {
    "in order": lambda: DataLoader(Noisy(), batch_size=2),
    "shuffled": lambda: DataLoader(Noisy(), batch_size=2, shuffle=True, drop_last=True),
    "batches at once": lambda: DataLoader(Whole(), batch_size=2, shuffle=True),
    "a generator": lambda: DataLoader(Noisy(), batch_size=2, shuffle=True, generator=seeded()),
    "a sampler": lambda: DataLoader(Noisy(), 2, sampler=WeightedRandomSampler([1.0] * SIZE, 7)),
    "a sampler with a generator": sampled,
    "workers, batches at once": lambda: DataLoader(Whole(), shuffle=True, **WORKERS),
    "persistent workers": lambda: DataLoader(Noisy(), **PERSISTENT),
    "persistent workers, a generator": lambda: DataLoader(Noisy(), **PERSISTENT, generator=seeded()),
}
UNORDERED: dict[str, Callable[[], Any]] = {
    "a stream": lambda: DataLoader(Stream(), batch_size=2),
    "a stream, workers": lambda: DataLoader(Stream(), **WORKERS),
    "its own way": lambda: Backwards(Noisy(), batch_size=2),
    "samples that are batches": lambda: DataLoader(Noisy(), batch_size=None, shuffle=True),
}


def listed(batches: Any) -> list[Any]:
    return [[column.tolist() for column in batch] for batch in batches]


def places(batches: Any) -> list[Any]:
    return [batch[0].tolist() for batch in batches]


@pytest.mark.parametrize("kind", LOADERS)
def test_the_order_is_that_of_pytorch_and_so_are_the_draws_from_its_generator(kind: str) -> None:
    """With persistent workers, they are those of others, from which PyTorch draws a seed in every pass."""
    torch.manual_seed(3)
    plain: Any = LOADERS[kind]()
    vars(plain)["persistent_workers"] = False
    expected, state = [places(plain) for _ in range(2)], torch.get_rng_state()
    torch.manual_seed(3)
    loader = LOADERS[kind]()
    assert [places(iterate(loader, epoch)) for epoch in range(2)] == expected
    if not loader.num_workers:  # else the samples' noise is drawn elsewhere
        assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("kind", LOADERS)
def test_the_rest_of_an_epoch_is_what_followed_in_it(kind: str) -> None:
    """In a new process, after the epochs before; the batches that were done are not loaded again."""
    loader, states = LOADERS[kind](), [random_state()]
    before = listed(iterate(loader, 0))
    states.append(random_state())
    whole, after = [], [random_state()]
    for batch in iterate(loader, 1):
        whole += listed([batch])
        after.append(random_state())
    skip, resumed = len(whole) // 2, LOADERS[kind]()
    replay_epochs(resumed, 1, lambda epoch: set_random_state(states[epoch]))
    set_random_state(states[1])
    rest = iterate_from(resumed, skip, partial(set_random_state, after[skip]), 1)
    assert listed(rest) == whole[skip:]
    if loader.num_workers:  # which repeat no noise
        noise = [value for batch in [*before, *whole] for column in batch[1:] for value in column]
        assert len(noise) == 2 * 3 * SIZE == len(set(noise))
    else:
        assert len(resumed.dataset.loaded) == sum(len(batch[0]) for batch in whole[skip:])


@pytest.mark.parametrize("kind", UNORDERED)
def test_of_other_loaders_the_batches_that_were_done_are_loaded_and_left_out(kind: str) -> None:
    loader, state = UNORDERED[kind](), random_state()
    replay_epochs(UNORDERED[kind](), 2, lambda epoch: None)
    set_random_state(state)
    whole = [repr(batch) for batch in iterate(loader)]
    set_random_state(state)
    assert [repr(batch) for batch in iterate_from(UNORDERED[kind](), 2, lambda: None)] == whole[2:]


PASSES: dict[str, tuple[Any, dict[str, Any]]] = {
    "a stream": (Stream(), {"batch_size": 2}),
    "a stream, persistent workers": (Stream(), {"num_workers": 1, "persistent_workers": True}),
    "samples that are batches": (Noisy(), {"batch_size": None, "shuffle": True}),
    "in order": (Noisy(), {"batch_size": 2, "shuffle": True}),
}


@pytest.mark.parametrize("kind", PASSES)
def test_replayed_passes_draw_from_the_loaders_generator_what_they_drew(kind: str) -> None:
    data, options = PASSES[kind]
    one, other = (DataLoader(data, generator=seeded(), **options) for _ in range(2))
    list(one)
    replay_epochs(other, 1, lambda epoch: None)
    assert torch.equal(one.generator.get_state(), other.generator.get_state())
    assert not torch.equal(one.generator.get_state(), seeded().get_state())


def test_batches_without_an_end_are_drawn_one_by_one() -> None:
    rest = iterate_from(DataLoader(Noisy(), batch_sampler=Endless()), 3, lambda: None)
    assert next(rest)[0].tolist() == [0, 1]


def test_persistent_workers_stay() -> None:
    def mark(worker: int) -> None:
        info: Any = get_worker_info()
        info.dataset.noise = np.random.randint(2**31)

    class Marked(Noisy):
        def __getitem__(self, place: int) -> Any:
            return [float(self.noise)]  # type: ignore[attr-defined]

    loader = DataLoader(Marked(), **{**PERSISTENT, "num_workers": 1, "worker_init_fn": mark})
    assert len({batch[0][0].item() for _ in range(3) for batch in iterate(loader)}) == 1


@pytest.mark.parametrize("where", ["loader", "sampler"])
def test_a_pass_can_leave_the_generators_as_they_were(where: str) -> None:
    generator = seeded()
    options: Any = {"shuffle": True, "generator": generator}
    if where == "sampler":
        options = {"sampler": RandomSampler(range(SIZE), generator=generator)}
    loader, before = DataLoader(Noisy(), 2, **options), generator.get_state()
    with loaders_of(loader).preserved(loader):
        list(iterate(loader))
        assert not torch.equal(generator.get_state(), before)
    assert torch.equal(generator.get_state(), before)


def test_samplers_that_shuffle_by_the_epoch_get_its_number() -> None:
    loader = DataLoader(Noisy(), 2, sampler=DistributedSampler(Noisy(), num_replicas=2, rank=1))
    first = places(iterate(loader, 3))
    assert places(iterate(loader, 4)) != first == places(iterate(loader, 3))


def test_what_the_reader_says_of_workers() -> None:
    reader, stream = Reader(ALONE), DataLoader(Stream(), persistent_workers=True, **WORKERS)
    loaders = [LOADERS["shuffled"](), LOADERS["persistent workers"](), stream]
    assert [reader.workers(each) for each in loaders] == [0, 2, 2]
    assert [reader.repeats_workers(each) for each in loaders] == [True, True, False]


def test_several_loaders_shuffle_by_the_runs_own_seed_and_resume() -> None:
    """Whatever PyTorch's generator is when an epoch begins; it stays as it is."""
    passes = []
    for seed, skip in ((1, 0), (2, 3)):
        torch.manual_seed(seed)
        loaders = {"a": LOADERS["shuffled"](), "b": DataLoader(Noisy(5), batch_size=2, shuffle=True)}
        np.random.seed(0)
        before = torch.get_rng_state()
        together = TaskLoaders(loaders, Proportional())
        batches = Reader(ALONE).iterate_from(together, skip, lambda: None, 2)
        passes.append([places(batch.batches.values()) for batch in iter(batches)])
        noise = torch.get_rng_state()
        torch.set_rng_state(before)
        torch.rand(sum(len(each) for update in passes[-1] for each in update))  # that of the samples
        assert torch.equal(torch.get_rng_state(), noise)
    assert passes[1] == passes[0][3:]
    assert any(batch != sorted(batch) for update in passes[0] for batch in update)


# ---- ranks


def read_by_ranks(skip: int = 0, size: Any = lambda rank: SIZE, **options: Any) -> list[Any]:
    """Return what each of two ranks read, and which samples it loaded; the first has a seed of 0."""

    def read(world: Any) -> Any:
        generator = torch.Generator().manual_seed(world.rank)
        loader = DataLoader(Noisy(size(world.rank)), generator=generator, **options)
        batches = list(Reader(world).iterate_from(loader, skip, lambda: None, 0))
        return [None if batch is None else batch[0].tolist() for batch in batches], loader.dataset.loaded

    return run_ranks(2, read)


def test_ranks_divide_the_batches_that_the_first_one_draws_and_load_their_share_alone() -> None:
    options: Any = {"batch_size": 3, "shuffle": True}
    whole = places(DataLoader(Noisy(), generator=torch.Generator().manual_seed(0), **options))
    (first, loaded), (second, _) = read_by_ranks(**options)
    assert [one + other for one, other in zip(first, second)] == whole
    assert loaded == [place for batch in first for place in batch]
    assert [len(batch) for batch in first] == [2, 2, 2, 1]
    assert [batches for batches, _ in read_by_ranks(skip=2, **options)] == [first[2:], second[2:]]


@pytest.mark.parametrize("kind", [np.int64, torch.tensor])
def test_indices_may_be_numbers_of_numpy_and_tensors(kind: Any) -> None:
    (first, _), (second, _) = read_by_ranks(batch_size=2, sampler=[kind(3), kind(1)])
    assert (first, second) == ([[3.0]], [[1.0]])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 2, "sampler": ["a", "b"]}, "yields str, but only indices"),
        ({"size": lambda rank: 3 + rank}, "different numbers of samples: 3 on rank 0, 4 on rank 1"),
    ],
)
def test_what_ranks_cannot_divide_is_an_error(options: Any, message: str) -> None:
    first, _ = read_by_ranks(**options)
    assert isinstance(first, DataError) and message in str(first)


def test_a_distributed_sampler_has_divided_the_samples_already() -> None:
    def problems(world: Any, data: Any) -> list[str]:
        return [problem.message for problem in rank_problems(world, "train_data", data)]

    loader = DataLoader(Noisy(), sampler=DistributedSampler(Noisy(), 2, 1))
    (found,), _ = run_ranks(2, lambda world: problems(world, loader))
    assert found.startswith("train_data is a DataLoader with a DistributedSampler") and "Sharded" in found
    assert not problems(ALONE, loader)
    assert run_ranks(2, lambda world: problems(world, Sharded(loader))) == [[], []]


def test_each_rank_reads_its_own_part_of_what_is_sharded() -> None:
    def read(world: Any) -> Any:
        sampler: Any = DistributedSampler(Noisy(), 2, world.rank, shuffle=False)
        return places(Reader(world).iterate(Sharded(DataLoader(Noisy(), 3, sampler=sampler)), 0))

    assert run_ranks(2, read) == [[[0, 2, 4], [6, 8, 10]], [[1, 3, 5], [7, 9, 0]]]
