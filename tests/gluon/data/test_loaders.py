"""Iterating over loaders and DataIters: again and again, from within an epoch, each sample once in a pass."""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multifit.distributed import ALONE
from multifit.engines.batch import arrays_in, as_numpy
from multifit.engines.loaders import Loaders, iterate, iterate_from, repeat, replay_epochs
from multifit.engines.reader import Reader
from multifit.errors import DataError
from multifit.gluon.compat import mx
from multifit.seeding import random_state, set_random_state
from tests.common.data import Limited, Repeating, Scaling


def take(iterator: Iterator[Any], count: int) -> list[Any]:
    return [batch for batch, _ in zip(iterator, range(count))]


def data_iter() -> Any:
    return mx.io.NDArrayIter(np.arange(6.0), batch_size=2)


def first_values(batches: Any) -> list[float]:
    return [float(batch.data[0][0].asscalar()) for batch in batches]


def test_repeat_starts_again_at_the_end() -> None:
    assert take(repeat([1, 2, 3]), 7) == [1, 2, 3, 1, 2, 3, 1]
    assert first_values(take(repeat(data_iter()), 5)) == [0, 2, 4, 0, 2]


def test_a_first_batch_that_was_looked_at_is_yielded() -> None:
    first, batches = Reader(ALONE).peek_first([1, 2], "data")
    assert first == 1
    assert list(batches) == [1, 2]


def test_where_mxnet_is_not_imported_iterators_are_reset_too() -> None:
    data = data_iter()
    list(data)
    assert first_values(Loaders().iterate(data, None)) == [0, 2, 4]


def refreshed(*arguments: Any, **options: Any) -> Any:
    """Return a loader whose next pass was asked for ahead."""
    data = mx.gluon.data.DataLoader(*arguments, **options)
    data.refresh()
    return data


AHEAD = {"auto_reload": partial(mx.gluon.data.DataLoader, auto_reload=True), "refresh": refreshed}


@pytest.mark.parametrize("batchify", [None, list], ids=["read by index", "own batchify"])
@pytest.mark.parametrize("make", AHEAD.values(), ids=AHEAD)
def test_each_pass_over_a_loader_that_prefetches_is_whole(make: Any, batchify: Any) -> None:
    data = make(np.arange(14.0).reshape(7, 2), 3, batchify_fn=batchify)
    next(iter(iterate(data)))  # as a check reads the first batch only
    passes = [sum(map(len, iterate(data))) for _ in range(3)]
    assert [*passes, sum(map(len, data))] == [7] * 4


@pytest.mark.parametrize("kind", [mx.gluon.data.DataLoader, Repeating, Limited, Scaling])
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_the_rest_of_an_epoch_of_a_loader(kind: Any, workers: int) -> None:
    """It is what followed in the epoch, also of a subclass that has not one batch for each of its sampler."""
    samples = mx.gluon.data.ArrayDataset(np.arange(14.0).reshape(7, 2), np.arange(7.0))
    data = kind(samples, 2, shuffle=True, num_workers=workers)
    states = [random_state()]
    whole = []
    for batch in iterate(data, 0):
        whole.append([array.asnumpy().tolist() for array in batch])
        states.append(random_state())
    for skip, state in enumerate(states):
        set_random_state(states[0])
        rest = iterate_from(data, skip, partial(set_random_state, state), 0)
        assert [[array.asnumpy().tolist() for array in batch] for batch in rest] == whole[skip:]


@pytest.mark.parametrize("last_batch", ["keep", "rollover"])
def test_replayed_epochs_lead_to_the_same_epoch(last_batch: str) -> None:
    def make() -> Any:
        return mx.gluon.data.DataLoader(np.arange(7.0), 2, shuffle=True, last_batch=last_batch)

    def epoch(data: Any) -> list[Any]:
        return [array.asnumpy().tolist() for array in iterate(data)]

    np.random.seed(9)
    data = make()
    for number in range(3):
        np.random.seed(number)
        expected = epoch(data)
    np.random.seed(99)  # as a new process may have drawn other numbers
    resumed = make()
    replay_epochs(resumed, 2, np.random.seed)
    np.random.seed(2)
    assert epoch(resumed) == expected


@pytest.mark.parametrize("data", [[], iter([]), 3])
def test_peek_first_needs_a_batch(data: Any) -> None:
    with pytest.raises(DataError, match="data"):
        Reader(ALONE).peek_first(data, "data")


def csv(path: Path, rows: int, size: int, **options: Any) -> Any:
    file = path / "x.csv"
    np.savetxt(file, np.column_stack([np.arange(rows)] * 2), delimiter=",")
    return mx.io.CSVIter(data_csv=str(file), data_shape=(2,), batch_size=size, **options)


def libsvm(path: Path, rows: int, size: int) -> Any:
    file = path / "x.libsvm"
    file.write_text("".join(f"0 1:{i + 1}\n" for i in range(rows)), "utf-8")  # zeros would be left out
    return mx.io.LibSVMIter(data_libsvm=str(file), data_shape=(2,), batch_size=size)


def images(path: Path, rows: int, size: int, **options: Any) -> Any:
    file = str(path / "x.rec")
    record = mx.recordio.MXRecordIO(file, "w")
    for i in range(rows):
        image = np.full((4, 4, 3), 2 * i, "uint8")
        record.write(mx.recordio.pack_img(mx.recordio.IRHeader(0, i, i, 0), image, img_fmt=".png"))
    record.close()
    options = {"preprocess_threads": 1, "verbose": False, **options}
    return mx.io.ImageRecordIter(path_imgrec=file, data_shape=(3, 4, 4), batch_size=size, **options)


def arrays(rows: int, size: int, kind: Any = mx.io.NDArrayIter, **options: Any) -> Any:
    return kind(np.column_stack([np.arange(rows)] * 2), batch_size=size, **options)


ITERATORS: dict[str, Callable[[Path, int, int], Any]] = {
    "CSV": csv,
    "CSV, padded": lambda *a: csv(*a, round_batch=False),
    "LibSVM": libsvm,
    "images": images,
    "images, shuffled": lambda *a: images(*a, shuffle=True, seed=1),
    "arrays": lambda path, *a: arrays(*a),
    "arrays, shuffled": lambda path, *a: arrays(*a, shuffle=True),
    "prefetched CSV": lambda *a: mx.io.PrefetchingIter(csv(*a)),
    "prefetched arrays": lambda path, *a: mx.io.PrefetchingIter(arrays(*a)),
}


def samples(batches: Any) -> list[int]:
    """Return the number of each sample, from the largest value in its row."""
    values = [arrays_in(batch, 0, as_numpy)[0] for batch in batches]
    return [round(row.max()) for value in values for row in value]


CASES = [(name, 110, 4) for name in ITERATORS]
CASES += [(name, 10, 4) for name in ITERATORS if "arrays" in name or "padded" in name]
CASES += [(name, 12, 4) for name in ("CSV", "LibSVM", "images")]


@pytest.mark.parametrize(("name", "rows", "size"), CASES)
def test_every_epoch_holds_each_sample_once(tmp_path: Path, name: str, rows: int, size: int) -> None:
    """Except of MXNet's iterators over files of few batches that are read to their end ahead."""
    data = ITERATORS[name](tmp_path, rows, size)
    epochs = [sorted(samples(iterate(data))) for _ in range(4)]
    assert epochs == [epochs[0]] * 4 and len(set(epochs[0])) == rows


@pytest.mark.parametrize("taken", [1, 2, 9])
def test_an_epoch_after_part_of_one(tmp_path: Path, taken: int) -> None:
    data = csv(tmp_path, 110, 4)
    for _ in range(3):
        list(islice(iterate(data), taken))
        assert sorted(samples(iterate(data))) == list(range(110))


@pytest.mark.parametrize("rows", [5, 10])
def test_rows_that_roll_over_are_no_padding(rows: int) -> None:
    data = arrays(rows, 4, last_batch_handle="roll_over")
    counts = Counter(number for _ in range(4) for number in samples(iterate(data)))
    assert counts == dict.fromkeys(range(rows), 4)
