"""A batch's random numbers depend on its number, not on the worker that makes it."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any, Callable, Iterator

import numpy as np
import pytest

from multifit.gluon.data import worker_seeding as workers
from multifit.gluon.data.loaders import iterate, iterate_from
from multifit.gluon.data.worker_seeding import has_own_workers, may_use_randomness, pass_seed, seedable

import mxnet as mx  # isort: skip
from mxnet.gluon import nn  # isort: skip
from mxnet.gluon.data import ArrayDataset, DataLoader, Dataset, SimpleDataset  # isort: skip
from mxnet.gluon.data.vision import transforms  # isort: skip

# Python 3.12 warns of every fork beside threads; MXNet has some, and knows what to do.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

N, BATCH = 12, 2


class Drawn(Dataset):
    """Samples of an index, a process, and what Python's, NumPy's and MXNet's generators draw."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        if index == 99:
            raise KeyError("no such picture")
        own = mx.nd.random.uniform().asscalar()
        return np.array([index, os.getpid(), random.random(), np.random.rand(), own])


def loader(workers: int = 2, **options: Any) -> Any:
    return DataLoader(Drawn(), **{"batch_size": BATCH, "num_workers": workers, **options})


def read(batches: Any) -> np.ndarray:
    """Return an epoch's samples: index, process, three numbers."""
    return np.concatenate([batch.asnumpy() for batch in batches])


def drawn(batches: Any) -> np.ndarray:
    return read(batches)[:, [0, 2, 3, 4]]


@pytest.fixture(scope="module")
def two() -> Any:
    return loader()


def test_every_sample_has_different_random_numbers(two: Any) -> None:
    for numbers in drawn(iterate(two, 0)).T:
        assert len(set(numbers)) == N


def test_the_number_of_workers_does_not_matter(two: Any) -> None:
    state = np.random.get_state()
    first = drawn(iterate(two, 3))
    np.random.set_state(state)
    assert np.array_equal(drawn(iterate(loader(1), 3)), first)


def test_the_main_process_draws_nothing(two: Any) -> None:
    def states() -> Any:
        return np.random.get_state()[1].tobytes(), np.random.get_state()[2], random.getstate()

    before, (python, numpy) = states(), (random.random(), np.random.rand())
    mx.random.seed(5)
    expected = mx.nd.random.uniform(shape=3).asnumpy()
    assert states() != before
    before = states()
    mx.random.seed(5)
    read(iterate(two))
    assert states() == before and (python, numpy) != (random.random(), np.random.rand())
    assert np.array_equal(mx.nd.random.uniform(shape=3).asnumpy(), expected)


def test_numbers_depend_on_numpys_seed_and_the_number_of_the_pass(two: Any) -> None:
    def numbers(seed: int, turn: int) -> bytes:
        np.random.seed(seed)
        return drawn(iterate(two, turn)).tobytes()

    drawn_numbers = [numbers(*each) for each in [(0, 0), (0, 1), (1, 0)]]
    assert len(set(drawn_numbers)) == 3
    assert numbers(0, 1) == drawn_numbers[1]


def test_passes_without_a_number_are_counted(two: Any) -> None:
    assert drawn(iterate(two)).tobytes() != drawn(iterate(two)).tobytes()
    other = loader(1)
    state = np.random.get_state()
    first = pass_seed(other, None)
    np.random.set_state(state)
    assert first == pass_seed(other, 0) != pass_seed(other, None) == pass_seed(other, 1)


def test_the_rest_of_an_epoch_has_the_same_random_numbers() -> None:
    shuffled = loader(shuffle=True)
    np.random.seed(1)
    whole = drawn(iterate(shuffled, 4))
    np.random.seed(1)
    rest = drawn(iterate_from(shuffled, 2, lambda: np.random.seed(9), 4))
    assert np.array_equal(rest, whole[2 * BATCH :])
    gc.collect()
    assert len(read(iterate(shuffled))) == N  # its workers are still there


def test_workers_live_on_between_epochs() -> None:
    kept = loader()
    pids = {worker.pid for worker in kept._worker_pool._pool}
    for turn in range(3):
        assert {int(pid) for pid in read(iterate(kept, turn))[:, 1]} <= pids
    assert {worker.pid for worker in kept._worker_pool._pool} == pids


@pytest.mark.parametrize(
    "how", [iterate, lambda data: iterate_from(data, 1, lambda: None)], ids=["all", "rest"]
)
def test_an_exception_in_a_worker_is_raised(how: Callable[[Any], Any]) -> None:
    broken = loader(batch_sampler=[[0], [1, 99]], batch_size=None)
    with pytest.raises(KeyError, match=r"which made the loader's batch 2, of samples \[1, 99\]") as caught:
        list(how(broken))
    assert caught.value.args == ("no such picture",)
    assert "in __getitem__" in str(caught.value.__cause__)


def doubled(samples: Any) -> Any:
    return mx.nd.array(np.stack(samples) * 2 + np.random.rand(), mx.Context("cpu_shared", 0))


def test_a_user_defined_batchify_function_is_used_and_seeded() -> None:
    own = DataLoader(np.ones((4, 2), "float32"), 2, num_workers=2, batchify_fn=doubled)
    np.random.seed(0)
    first = read(iterate(own, 0))
    assert (first >= 2).all() and len(set(first[:, 0])) == 2
    np.random.seed(0)
    assert np.array_equal(read(iterate(own, 0)), first)


def test_batches_are_those_of_the_loader() -> None:
    x = np.random.rand(7, 3).astype("float32")
    plain = DataLoader(ArrayDataset(x, np.arange(7)), 2, num_workers=1, pin_memory=False)
    for one, two in zip(iterate(plain), plain):
        for array, expected in zip(one, two):
            assert (array.context, array.dtype) == (expected.context, expected.dtype)
            assert np.array_equal(array.asnumpy(), expected.asnumpy())


# -------------------------------------------------------------------------------- loaders that are not seeded


class Own(DataLoader):
    """A loader that iterates in its own way."""

    def __iter__(self) -> Iterator[Any]:
        yield "mine"


def test_other_loaders_are_not_seeded() -> None:
    assert not has_own_workers([1]) and not has_own_workers(loader(0))
    threads = loader(1, thread_pool=True)
    threads._worker_pool.terminate()
    assert not has_own_workers(threads)
    own = Own(Drawn(), 2, num_workers=1)
    assert has_own_workers(own) and not seedable(own) and list(iterate(own)) == ["mine"]
    ahead = loader(1, auto_reload=True)
    assert not seedable(ahead) and len(read(iterate(ahead))) == N


SCRIPT = """
import multiprocessing
import sys
import numpy as np
if np.lib.NumpyVersion(np.__version__) >= "1.24.0":  # mxnet cannot be imported before multifit
    import multifit
from mxnet import gluon

class Nowhere:
    def find_spec(self, name, path=None, target=None):
        if name == "multifit":
            raise ModuleNotFoundError(name=name)

if __name__ == "__main__":
    early = gluon.data.DataLoader(np.arange(6.0), 2, num_workers=1)
    sys.meta_path.insert(0, Nowhere())
    hidden = gluon.data.DataLoader(np.arange(6.0), 2, num_workers=1)
    sys.meta_path.pop(0)
    from multifit.gluon.data.loaders import iterate
    from multifit.gluon.data.worker_seeding import seedable
    multiprocessing.set_start_method("spawn", force=True)
    spawned = gluon.data.DataLoader(np.arange(6.0), 2, num_workers=1)
    for loader in (early, hidden, spawned):
        print(seedable(loader), [batch.asnumpy().tolist() for batch in iterate(loader)])
"""


def test_workers_started_before_multifit_was_imported_and_spawned_ones(tmp_path: Path) -> None:
    """They import multifit, or are not seeded if they cannot find it."""
    file = tmp_path / "script.py"
    file.write_text(SCRIPT, "utf-8")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    script = subprocess.run(
        [sys.executable, str(file)], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert script.returncode == 0, script.stderr
    batches = "[[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]"
    early, hidden, spawned = script.stdout.splitlines()
    assert early == spawned == f"True {batches}"
    assert hidden == f"False {batches}" or np.lib.NumpyVersion(np.__version__) >= "1.24.0"


def test_make_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, because coverage does not see the workers."""
    monkeypatch.setattr(mx.gluon.data.dataloader, "_worker_dataset", Drawn())
    batches = [workers._make_batch((seed, [1, 2]), np.stack) for seed in (5, 5, 6, None)]
    assert batches[0] == batches[1] and len(set(batches)) == 3


def test_a_pool_whose_workers_cannot_import_multifit(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has ended, and one whose workers do not find the file."""
    pool = ThreadPool(1)
    with monkeypatch.context() as patch:
        patch.setattr(workers, "__name__", "multifit.gluon.nowhere")
        assert not workers._can_import(pool, 60)
    assert workers._can_import(pool, 60)
    pool.terminate()
    ended = ThreadPool(1)
    ended.terminate()
    assert not workers._can_import(ended, 60)


# ------------------------------------------------------------------------------------ deterministic data sets


def images() -> Any:
    return ArrayDataset(mx.nd.ones((2, 4, 4, 3), dtype="uint8"), np.arange(2))


def flip() -> Any:
    return transforms.RandomFlipLeftRight()


def compose(*more: Any) -> Any:
    return transforms.Compose([transforms.Resize(2), transforms.ToTensor(), transforms.Normalize(), *more])


def sequential(net: Any, *more: Any) -> Any:
    net.add(transforms.CenterCrop(2), *more)
    return net


DETERMINISTIC = {
    "arrays": images,
    "within": lambda: SimpleDataset(images()),
    "a transform": lambda: images().transform_first(transforms.ToTensor()),
    "several": lambda: images().transform_first(transforms.Cast()).transform_first(compose()),
    "of one": lambda: SimpleDataset(np.ones((2, 4, 4, 3))).transform(sequential(nn.Sequential())),
}
RANDOM = {
    "the user's": Drawn,
    "a flip": lambda: images().transform_first(flip()),
    "a flip among others": lambda: images().transform_first(compose(flip())),
    "within a block": lambda: images().transform_first(sequential(nn.Sequential(), flip())),
    "beneath": lambda: images().transform_first(flip()).transform_first(transforms.Cast()),
    "a function": lambda: images().transform(lambda image, label: (image, label)),
}


@pytest.mark.parametrize("make", [*DETERMINISTIC.values(), *RANDOM.values()], ids=[*DETERMINISTIC, *RANDOM])
def test_data_sets_that_may_use_randomness(make: Callable[[], Any]) -> None:
    assert may_use_randomness(make()) is (make in RANDOM.values())
