"""A DataLoader's workers: random numbers by batch; one that dies, hangs or raises is named within seconds."""

import gc
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from multifit import DataError
from multifit.engines.loaders import iterate, iterate_from
from multifit.gluon.data import workers
from multifit.gluon.data.workers import has_own_workers, seedable

import mxnet as mx  # isort: skip
from mxnet.gluon.data import ArrayDataset, DataLoader, SimpleDataset  # isort: skip

# Python 3.12 warns of every fork beside threads; MXNet has some, and knows what to do.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

N = 12


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "LOOK", 0.05)


class Made(SimpleDataset):
    """Samples that a function makes from their index."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        super().__init__(range(N))
        self.make = make

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


def draw(index: int) -> Any:
    """Return an index, and what Python's, NumPy's and MXNet's generators draw."""
    if index == 99:
        raise KeyError("no such picture")
    return np.array([index, random.random(), np.random.rand(), mx.nd.random.uniform().asscalar()])


def loader(count: int = 2, **options: Any) -> Any:
    return DataLoader(Made(draw), **{"batch_size": 2, "num_workers": count, **options})


def read(batches: Any) -> np.ndarray:
    return np.concatenate([batch.asnumpy() for batch in batches])


# ------------------------------------------------------------------------------------------------------ seeds


def test_random_numbers_depend_on_numpys_seed_the_pass_and_the_batch() -> None:
    def numbers(data: Any, seed: int, turn: int) -> np.ndarray:
        np.random.seed(seed)
        return read(iterate(data, turn))

    two, state = loader(), random.getstate()
    mx.random.seed(5)
    expected = mx.nd.random.uniform(shape=3).asnumpy()
    mx.random.seed(5)
    first = numbers(two, 0, 0)
    assert all(len(set(column)) == N for column in first.T)
    # the main process draws nothing
    following = np.random.rand(), mx.nd.random.uniform(shape=3).asnumpy().tolist(), random.getstate()
    np.random.seed(0)
    assert following == (np.random.rand(), expected.tolist(), state)
    assert np.array_equal(numbers(loader(1), 0, 0), first)  # whatever the number of workers
    assert not np.isin(numbers(two, 0, 1)[:, 1:], first).any()
    assert not np.isin(numbers(two, 1, 0)[:, 1:], first).any()


def test_the_rest_of_an_epoch_has_the_same_random_numbers() -> None:
    shuffled = loader(shuffle=True)
    np.random.seed(1)
    whole = read(iterate(shuffled, 4))
    np.random.seed(1)
    assert np.array_equal(read(iterate_from(shuffled, 2, lambda: np.random.seed(9), 4)), whole[4:])
    gc.collect()
    assert len(read(iterate(shuffled))) == N  # its workers are still there


def test_batches_are_those_of_the_loader() -> None:
    samples = ArrayDataset(np.random.rand(7, 3).astype("float32"), np.arange(7))
    plain = DataLoader(samples, 2, num_workers=1, pin_memory=True)
    for one, other in zip(iterate(plain), plain):
        for array, expected in zip(one, other):
            assert (array.context, array.dtype) == (expected.context, expected.dtype)
            assert np.array_equal(array.asnumpy(), expected.asnumpy())


class Mine(DataLoader):
    """A loader that iterates in its own way."""

    def __iter__(self) -> Iterator[Any]:
        yield "mine"


def test_other_loaders_are_not_seeded() -> None:
    assert not any(map(has_own_workers, ([1], loader(0), loader(1, thread_pool=True))))
    mine, ahead = Mine(Made(draw), 2, num_workers=1), loader(1, auto_reload=True)
    assert has_own_workers(mine) and not seedable(mine) and list(iterate(mine)) == ["mine"]
    assert not seedable(ahead) and len(read(iterate(ahead))) == N


def test_what_a_worker_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, because coverage does not see the workers."""
    handlers: dict[int, Any] = {}
    monkeypatch.setattr(signal, "signal", handlers.__setitem__)
    monkeypatch.setattr(mx.gluon.data.dataloader, "_worker_dataset", Made(draw))
    batches = [workers._make_batch(seed, [1, 2], np.stack) for seed in (5, 5, 6)]
    assert batches[0] == batches[1] != batches[2]
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    for parent in (SimpleNamespace(pid=os.getppid()), SimpleNamespace(pid=-1)):
        monkeypatch.setattr(workers, "parent_process", lambda parent=parent: parent)
        handlers[signal.SIGTERM](signal.SIGTERM, None)
    assert ended == [1] and handlers.keys() == {signal.SIGTERM, signal.SIGHUP}


# ---------------------------------------------------------------------------------------- workers that fail


def test_an_exception_in_a_worker_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = loader(batch_sampler=[[0], [1, 99]], batch_size=None)
    with pytest.raises(KeyError, match=r"which made the loader's batch 2, of samples \[1, 99\]") as caught:
        list(iterate(broken))
    assert caught.value.args == ("no such picture",) and "in draw" in str(caught.value.__cause__)

    def refuse(batch: bytes) -> None:
        raise OSError("too many open files")

    monkeypatch.setattr(workers.pickle, "loads", refuse)
    with pytest.raises(OSError, match="too many open files"):
        next(iterate(loader(1)))


FAILURES: dict[str, tuple[Callable[[], Any], dict[str, Any], str]] = {
    "killed": (lambda: os.kill(os.getpid(), signal.SIGKILL), {},
        "was not made: a worker of the DataLoader was killed by signal 9; the system"),
    "ended": (lambda: os._exit(3), {}, "a worker of the DataLoader ended with exit code 3"),
    "hangs": (lambda: time.sleep(1000), {"timeout": 1},
        "was not made in 1 s; give the DataLoader a longer"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAILURES)
def test_a_worker_that_fails_is_named_with_its_batch(name: str) -> None:
    fail, options, text = FAILURES[name]
    data = DataLoader(Made(lambda i: fail() if i == 7 else np.ones(3)), 2, num_workers=2, **options)
    begin = time.monotonic()
    with pytest.raises(DataError) as raised:
        list(iterate(data))
    assert text in str(raised.value) and "the loader's batch" in str(raised.value)
    with pytest.raises(ValueError, match="Pool not running"):
        list(iterate(data))
    del data
    gc.collect()
    assert time.monotonic() - begin < 20


@pytest.mark.parametrize("taken", [1, N // 2])
def test_idle_workers_that_died(taken: int) -> None:
    """One holds the lock of the tasks, for which new workers, and the end of Gluon's pool, would wait."""
    before = {worker.pid for worker in multiprocessing.active_children()}
    data = loader()
    batches = iterate(data)
    for _ in range(taken):
        next(batches)
    processes = list(data._worker_pool._pool)
    time.sleep(0.2)  # batches that are made ahead are ready
    for worker in processes:
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()
    time.sleep(0.3)  # the pool would replace them at once
    assert data._worker_pool._pool == processes
    assert {worker.pid for worker in multiprocessing.active_children()} <= before
    with pytest.raises(DataError, match=r"killed by signal 9"):
        list(batches if taken == 1 else iterate(data))


@pytest.mark.parametrize(
    "options", [{}, {"num_workers": 1}, {"num_workers": 1, "thread_pool": True}], ids=str
)
def test_samples_may_be_or_hold_dicts_and_texts(options: Any) -> None:
    """For texts, Gluon's own function raises KeyError; the batch's slot is refused by its name."""
    named = DataLoader(Made(lambda i: {"x": np.full(3, i), "more": {"y": i}}), 5, **options)
    for skip, batches in ((0, iterate(named)), (1, iterate_from(named, 1, lambda: None))):
        found = [(batch["x"].shape, batch["more"]["y"].asnumpy().tolist()) for batch in batches]
        assert found == [((5, 3), [0, 1, 2, 3, 4]), ((5, 3), [5, 6, 7, 8, 9]), ((2, 3), [10, 11])][skip:]
    number, inner, texts = next(iterate(DataLoader(Made(lambda i: (i, {"y": i}, "ab"[i])), 2, **options)))
    assert number.asnumpy().tolist() == inner["y"].asnumpy().tolist() == [0, 1]
    assert texts.tolist() == ["a", "b"]
