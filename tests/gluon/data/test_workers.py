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
from mxnet.gluon.data import ArrayDataset, DataLoader, Dataset  # isort: skip

# Python 3.12 warns of every fork beside threads; MXNet has some, and knows what to do.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

N, BATCH = 12, 2


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "LOOK", 0.05)


# ------------------------------------------------------------------------------------------------------ seeds


class Drawn(Dataset):
    """Samples of an index, a process, and what Python's, NumPy's and MXNet's generators draw."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        if index == 99:
            raise KeyError("no such picture")
        own = mx.nd.random.uniform().asscalar()
        return np.array([index, os.getpid(), random.random(), np.random.rand(), own])


def loader(count: int = 2, **options: Any) -> Any:
    return DataLoader(Drawn(), **{"batch_size": BATCH, "num_workers": count, **options})


def read(batches: Any) -> np.ndarray:
    """Return an epoch's samples: index, process, three numbers."""
    return np.concatenate([batch.asnumpy() for batch in batches])


def drawn(batches: Any) -> np.ndarray:
    return read(batches)[:, [0, 2, 3, 4]]


@pytest.fixture(scope="module")
def two() -> Any:
    return loader()


def test_every_sample_has_different_random_numbers_whatever_the_number_of_workers(two: Any) -> None:
    state = np.random.get_state()
    first = drawn(iterate(two, 3))
    assert all(len(set(numbers)) == N for numbers in first.T)
    np.random.set_state(state)
    assert np.array_equal(drawn(iterate(loader(1), 3)), first)


def test_the_main_process_draws_nothing(two: Any) -> None:
    def states() -> Any:
        return np.random.get_state()[1].tobytes(), np.random.get_state()[2], random.getstate()

    mx.random.seed(5)
    expected, before = mx.nd.random.uniform(shape=3).asnumpy(), states()
    mx.random.seed(5)
    read(iterate(two))
    assert states() == before
    assert np.array_equal(mx.nd.random.uniform(shape=3).asnumpy(), expected)


def test_numbers_depend_on_numpys_seed_and_the_number_of_the_pass(two: Any) -> None:
    def numbers(seed: int, turn: int) -> bytes:
        np.random.seed(seed)
        return drawn(iterate(two, turn)).tobytes()

    drawn_numbers = [numbers(*each) for each in [(0, 0), (0, 1), (1, 0)]]
    assert len(set(drawn_numbers)) == 3
    assert numbers(0, 1) == drawn_numbers[1]


def test_the_rest_of_an_epoch_has_the_same_random_numbers() -> None:
    shuffled = loader(shuffle=True)
    np.random.seed(1)
    whole = drawn(iterate(shuffled, 4))
    np.random.seed(1)
    rest = drawn(iterate_from(shuffled, 2, lambda: np.random.seed(9), 4))
    assert np.array_equal(rest, whole[2 * BATCH :])
    gc.collect()
    assert len(read(iterate(shuffled))) == N  # its workers are still there


def test_an_exception_in_a_worker_is_raised() -> None:
    broken = loader(batch_sampler=[[0], [1, 99]], batch_size=None)
    with pytest.raises(KeyError, match=r"which made the loader's batch 2, of samples \[1, 99\]") as caught:
        list(iterate(broken))
    assert caught.value.args == ("no such picture",)
    assert "in __getitem__" in str(caught.value.__cause__)


def test_batches_are_those_of_the_loader() -> None:
    samples = ArrayDataset(np.random.rand(7, 3).astype("float32"), np.arange(7))
    plain = DataLoader(samples, 2, num_workers=1, pin_memory=True)
    for one, other in zip(iterate(plain), plain):
        for array, expected in zip(one, other):
            assert (array.context, array.dtype) == (expected.context, expected.dtype)
            assert np.array_equal(array.asnumpy(), expected.asnumpy())


class Own(DataLoader):
    """A loader that iterates in its own way."""

    def __iter__(self) -> Iterator[Any]:
        yield "mine"


def test_other_loaders_are_not_seeded() -> None:
    assert not has_own_workers([1]) and not has_own_workers(loader(0))
    assert not has_own_workers(loader(1, thread_pool=True))
    own = Own(Drawn(), 2, num_workers=1)
    assert has_own_workers(own) and not seedable(own) and list(iterate(own)) == ["mine"]
    ahead = loader(1, auto_reload=True)
    assert not seedable(ahead) and len(read(iterate(ahead))) == N


def test_what_a_worker_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, because coverage does not see the workers."""
    handlers: dict[int, Any] = {}
    monkeypatch.setattr(signal, "signal", handlers.__setitem__)
    monkeypatch.setattr(mx.gluon.data.dataloader, "_worker_dataset", Drawn())
    batches = [workers._make_batch(seed, [1, 2], np.stack) for seed in (5, 5, 6)]
    assert batches[0] == batches[1] != batches[2]
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    for parent in (SimpleNamespace(pid=os.getppid()), SimpleNamespace(pid=-1)):
        monkeypatch.setattr(workers, "parent_process", lambda parent=parent: parent)
        handlers[signal.SIGTERM](signal.SIGTERM, None)
    assert ended == [1] and handlers.keys() == {signal.SIGTERM, signal.SIGHUP}


# ---------------------------------------------------------------------------------------- workers that fail


class Failing(Dataset):
    """(x, y) by index; `fail` is called for one sample."""

    def __init__(self, fail: Callable[[], Any], at: int = 7) -> None:
        self.fail, self.at = fail, at

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        if index == self.at:
            self.fail()
        return np.full(3, index, "float32"), np.ones(1, "float32")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


FAILURES: dict[str, tuple[Callable[[], Any], dict[str, Any], str]] = {
    "killed": (die, {}, "was not made: a worker of the DataLoader was killed by signal 9; the system"),
    "ended": (lambda: os._exit(3), {}, "a worker of the DataLoader ended with exit code 3"),
    "hangs": (lambda: time.sleep(1000), {"timeout": 1}, "was not made in 1 s; give the DataLoader a longer"),
}


@pytest.mark.parametrize(("fail", "options", "text"), FAILURES.values(), ids=FAILURES)
def test_a_worker_that_fails_is_named_with_its_batch(fail: Any, options: Any, text: str) -> None:
    data = DataLoader(Failing(fail), 2, num_workers=2, **options)
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
    data = DataLoader(Failing(die, at=-1), 2, num_workers=2)
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


def test_memory_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(batch: bytes) -> None:
        raise OSError("too many open files")

    monkeypatch.setattr(workers.pickle, "loads", refuse)
    with pytest.raises(OSError, match="too many open files"):
        next(iterate(DataLoader(Failing(die, at=-1), 2, num_workers=1)))


# ------------------------------------------------------------------------------------------- samples in dicts


class Dicts(Dataset):
    """Samples by name, one of them nested."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> Any:
        return {"x": np.full(3, index, "float32"), "more": {"y": index}}


@pytest.mark.parametrize(
    "options", [{}, {"num_workers": 1}, {"num_workers": 1, "thread_pool": True}], ids=str
)
def test_samples_may_be_dicts(options: Any) -> None:
    data = DataLoader(Dicts(), 2, **options)
    for skip, batches in ((0, list(iterate(data))), (1, list(iterate_from(data, 1, lambda: None)))):
        assert [batch["x"].shape for batch in batches] == [(2, 3), (2, 3), (1, 3)][skip:]
        assert [batch["more"]["y"].asnumpy().tolist() for batch in batches] == [[0, 1], [2, 3], [4]][skip:]


def test_samples_may_hold_dicts() -> None:
    first, named = next(iter(iterate(DataLoader([(i, {"y": i}) for i in range(4)], 3))))
    assert first.asnumpy().tolist() == named["y"].asnumpy().tolist() == [0, 1, 2]


def test_samples_may_hold_texts() -> None:
    """Gluon's own function raises KeyError for them; the batch's slot is refused by its name."""
    _, texts = next(iter(iterate(DataLoader([(i, "ab"[i]) for i in range(2)], 2))))
    assert texts.tolist() == ["a", "b"]
