"""A worker of a DataLoader that dies, hangs or raises is named within seconds, and nothing hangs."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import Any, Callable, Iterator

import numpy as np
import pytest

from multifit import CheckpointHandler, DataError, MultiEstimator
from multifit.gluon.data import worker_batches
from multifit.gluon.data.loaders import iterate, iterate_from
from tests.common.hand_loop import SILENT
from tests.common.noted import with_notes
from tests.common.specs import L2

import mxnet as mx  # isort: skip
from mxnet.gluon.data import DataLoader, Dataset  # isort: skip

# Python 3.12 warns of every fork beside threads; MXNet has some, and knows what to do.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

SAMPLES = 12


class Unpickled(Exception):
    """An exception that cannot be unpickled: its constructor takes two arguments."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(one)


class Failing(Dataset):
    """(x, y) by index; `fail` is called for one sample."""

    def __init__(self, fail: Callable[[], Any], at: int = 7) -> None:
        self.fail, self.at = fail, at

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        if index == self.at:
            self.fail()
        return np.full(3, index, "float32"), np.ones(1, "float32")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def leave() -> None:
    os._exit(3)


def hang() -> None:
    time.sleep(1000)


def miss() -> None:
    raise FileNotFoundError("picture 7")


def misunderstand() -> None:
    raise Unpickled("one", "two")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_batches, "LOOK", 0.05)
    monkeypatch.setattr(worker_batches, "PATIENCE", 0.4)


FAILURES: dict[str, tuple[Callable[[], Any], dict[str, Any], type[Exception], str]] = {
    "killed": (die, {}, DataError, "a worker of the DataLoader was killed by signal 9; the system"),
    "ended": (leave, {}, DataError, "was not made: a worker of the DataLoader ended with exit code 3"),
    "hangs": (hang, {"timeout": 1}, DataError, "no worker has made it in 1 s; the data set hangs"),
    "raises": (miss, {}, FileNotFoundError, "of samples [6, 7]"),
    "unpickled": (misunderstand, {}, DataError, "that cannot be unpickled"),
    "thread hangs": (lambda: time.sleep(2), {"timeout": 0.2, "thread_pool": True}, DataError, "in 0.2 s"),
    "thread raises": (miss, {"thread_pool": True}, FileNotFoundError, "of samples [6, 7]"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(("fail", "options", "error", "text"), FAILURES.values(), ids=FAILURES)
def test_a_worker_that_fails_is_named(fail: Any, options: Any, error: Any, text: str) -> None:
    data = DataLoader(Failing(fail), 2, num_workers=2, **options)
    begin = time.monotonic()
    with pytest.raises(error) as raised:
        list(iterate(data))
    assert text in with_notes(raised.value) and "the loader's batch" in with_notes(raised.value)
    assert time.monotonic() - begin < 20
    if error is FileNotFoundError:
        assert str(raised.value) == "picture 7"
    else:
        with pytest.raises(DataError, match="the loader's workers have ended; make a new DataLoader"):
            list(iterate(data))


def test_workers_that_died_with_a_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle worker holds the lock of the tasks, for which new workers, and the end of the pool, wait."""
    data = DataLoader(Failing(miss, at=-1), 2, num_workers=2)
    assert len(list(iterate(data))) == SAMPLES / 2
    for worker in list(data._worker_pool._pool):
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()
    with pytest.raises(DataError, match="was killed by signal 9"):
        list(iterate(data))


def test_a_worker_that_died_is_not_replaced() -> None:
    """The pool would fork in its own thread, beside which MXNet's engine can lose what it was given."""
    before = {worker.pid for worker in multiprocessing.active_children()}
    data = DataLoader(Failing(miss, at=-1), 2, num_workers=2)
    assert len(list(iterate(data))) == SAMPLES / 2
    workers = list(data._worker_pool._pool)
    os.kill(workers[0].pid, signal.SIGKILL)
    workers[0].join()
    time.sleep(0.3)  # the pool replaces a worker at once
    assert data._worker_pool._pool == workers
    assert not {worker.pid for worker in multiprocessing.active_children()} - before - {workers[1].pid}
    worker_batches.end_pool(data._worker_pool)


def test_a_worker_that_died_after_its_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of the batch is gone with it."""
    data = DataLoader(Failing(miss, at=-1), 2, num_workers=1)
    batches = iterate(data)
    next(batches)
    (worker,) = data._worker_pool._pool
    time.sleep(0.1)
    os.kill(worker.pid, signal.SIGKILL)
    worker.join()
    with pytest.raises(DataError, match="was killed by signal 9"):
        list(batches)


@pytest.mark.parametrize("rest", [0, 1])
def test_a_worker_that_died_after_its_last_batch(rest: int) -> None:
    """Deleting the loader would wait for the lock that it held, also where the pass is left early."""
    data = DataLoader(Failing(miss, at=-1), 2, num_workers=1)
    batches = iterate(data)
    for _ in range(SAMPLES // 2 - rest):
        next(batches)
    (worker,) = data._worker_pool._pool
    time.sleep(0.1)
    os.kill(worker.pid, signal.SIGKILL)
    worker.join()
    batches.close() if rest else next(batches, None)  # type: ignore[attr-defined]
    with pytest.raises(DataError, match="the loader's workers have ended; make a new DataLoader"):
        list(iterate(data))


def test_batches_that_a_pass_left_are_given_back() -> None:
    """A worker holds a descriptor and the memory of each array of a batch until somebody takes it."""
    data = DataLoader(Failing(miss, at=-1), 2, num_workers=1)

    def descriptors() -> int:
        return len(os.listdir(f"/proc/{data._worker_pool._pool[0].pid}/fd"))

    list(iterate(data))
    before = descriptors()
    for _ in range(20):
        next(iterate(data))
    list(iterate(data))
    assert descriptors() < before + 20  # those of the last batches may be about to be closed


def test_a_pass_that_is_left_does_not_wait() -> None:
    data = DataLoader(Failing(hang, at=2), 2, num_workers=1)
    begin = time.monotonic()
    batches = iterate(data)
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    assert time.monotonic() - begin < 20
    worker_batches.end_pool(data._worker_pool)


def test_memory_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(batch: bytes) -> None:
        raise OSError("too many open files")

    data = DataLoader(Failing(miss, at=-1), 2, num_workers=1)
    batches = iterate(data)
    next(batches)
    monkeypatch.setattr(worker_batches.pickle, "loads", refuse)
    with pytest.raises(DataError, match="batch 2, .*: its shared memory cannot be read: too many open files"):
        list(batches)


class Twice:
    """Kills a worker in the second epoch, once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self) -> None:
        for name in ("first", "second"):
            if not (self.folder / name).exists():
                (self.folder / name).touch()
                return die() if name == "second" else None
        return None


def test_a_fit_keeps_its_checkpoint_and_resumes(tmp_path: Path) -> None:
    def fit() -> MultiEstimator:
        estimator = MultiEstimator(mx.gluon.nn.Dense(1), L2)
        data = DataLoader(Failing(Twice(tmp_path)), 2, num_workers=2)
        handlers = [CheckpointHandler(tmp_path / "run", every=1), *SILENT]
        estimator.fit(data, epochs=3, event_handlers=handlers, resume=tmp_path / "run")
        return estimator

    with pytest.raises(DataError, match="killed by signal 9"):
        fit()
    assert fit().state.epoch == 3


# ----------------------------------------------------------------------------------------- samples in dicts


class Dicts(Dataset):
    """Samples by name, one of them nested."""

    def __init__(self, odd: int = -1) -> None:
        self.odd = odd

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> Any:
        sample = {"x": np.full(3, index, "float32"), "more": {"y": index}}
        return {**sample, "z": 1} if index == self.odd else sample


@pytest.mark.parametrize(
    "options", [{}, {"num_workers": 1}, {"num_workers": 1, "thread_pool": True}], ids=str
)
@pytest.mark.parametrize("skip", [0, 1])
def test_samples_may_be_dicts(options: Any, skip: int) -> None:
    data = DataLoader(Dicts(), 2, **options)
    batches: Iterator[Any] = iterate_from(data, skip, lambda: None) if skip else iterate(data)
    batches = list(batches)
    assert [batch["x"].shape for batch in batches] == [(2, 3), (2, 3), (1, 3)][skip:]
    assert [batch["more"]["y"].asnumpy().tolist() for batch in batches] == [[0, 1], [2, 3], [4]][skip:]


def test_samples_may_hold_dicts() -> None:
    first, named = next(iter(iterate(DataLoader([(i, {"y": i}) for i in range(4)], 3))))
    assert first.asnumpy().tolist() == named["y"].asnumpy().tolist() == [0, 1, 2]


def ones(*shape: int, dtype: str = "float32") -> Any:
    return mx.nd.ones(shape, dtype=dtype)


# samples of a batch, and what is said of them
UNBATCHABLE: dict[str, tuple[list[Any], str]] = {
    "ragged": ([(1, np.ones(1)), (2, np.ones(2))], "differ: [int, (1,) float64] and [int, (2,) float64]"),
    "ragged NDArrays": ([(1, ones(1)), (2, ones(2))], "differ: [int, (1,) float32] and [int, (2,) float32]"),
    "NDArrays of equal sizes": ([ones(6), ones(2, 3)], "differ: (6,) float32 and (2, 3) float32; give"),
    "NDArrays of other dtypes": ([ones(1), ones(1, dtype="int32")], "differ: (1,) float32 and (1,) int32; "),
    "None, then an array": ([(1, None), (2, ones(1))], "dtypes, the value of missing= in place of None, or"),
    "an NDArray, then None": ([(1, ones(1)), (2, None)], "differ: [int, (1,) float32] and [int, None]; give"),
    "shorter tuples": ([(1, 2), (1, 2, 3)], "differ: [int, int] and [int, int, int]; give"),
    "not all dicts": ([{"x": 1}, 2], 'differ: {"x": int} and int; give'),
    "None in all": ([(1, None), (2, None)], "a sample is [int, None], which MXNet cannot batch; "),
    "a dtype": ([np.ones(2, "uint16")] * 2, "a sample is (2,) uint16, which MXNet cannot batch; valid"),
    "text": (["a", "bc"], "of bool, float16, float32, float64, int32, int64, int8, uint8, in tuples or"),
}


@pytest.mark.filterwarnings("ignore:Creating an ndarray from ragged")  # of NumPy below 1.24
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("case", UNBATCHABLE)
def test_samples_that_are_no_batch(case: str, workers: int) -> None:
    samples, text = UNBATCHABLE[case]
    data = DataLoader(samples, 2, num_workers=workers, thread_pool=True)
    with pytest.raises(DataError) as raised:
        list(iterate(data))
    assert text in str(raised.value)


def test_samples_with_different_keys() -> None:
    with pytest.raises(DataError, match='different keys: "x", "more" and "x", "more", "z"; return the same'):
        list(iterate(DataLoader(Dicts(odd=1), 2)))
