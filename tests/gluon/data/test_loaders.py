"""Loaders are read by index, again and again, and within an epoch; DataIters yield each sample once."""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multifit.engines.batch import arrays_in, as_numpy
from multifit.engines.loaders import Loaders, iterate, iterate_from, repeat
from multifit.gluon.data.loaders import by_index
from multifit.utils.seeding import random_state, set_random_state
from tests.common.data import Limited, Repeating, Scaling

import mxnet as mx  # isort: skip
from mxnet.gluon.data import (
    ArrayDataset,
    BatchSampler,
    DataLoader,
    FilterSampler,
    RandomSampler,
    SimpleDataset,
)  # isort: skip  # fmt: skip

# -------------------------------------------------------------------------------------------------- by index

N = 11
DTYPES = ["float16", "float32", "float64", "uint8", "int8", "int32", "int64", "bool"]


def column(dtype: str = "float32", *shape: int) -> np.ndarray:
    values = np.random.RandomState(1).randint(0, 100, (N, *shape))
    return (values % 2 == 0) if dtype == "bool" else values.astype(dtype)


IMAGES = np.random.RandomState(2).randn(N, 3, 2).astype("float32")


class Batches:
    """A batch sampler that yields what it is called with."""

    def __init__(self, *batches: Any) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)


def pairs(**options: Any) -> Any:
    return DataLoader(ArrayDataset(IMAGES, mx.nd.array(column("int32", 2))), **options)


def shuffled(*columns: Any) -> Any:
    return DataLoader(columns[0] if len(columns) == 1 else ArrayDataset(*columns), 4, shuffle=True)


BY_INDEX: dict[str, Callable[[], Any]] = {
    "every dtype": lambda: shuffled(
        *(column(dtype, *shape) for dtype in DTYPES for shape in ((), (4,))),
        *(mx.nd.array(column(dtype, 4), dtype=dtype) for dtype in DTYPES),
    ),
    "one column": lambda: shuffled(ArrayDataset(IMAGES)),
    "a vector on a device among columns": lambda: shuffled(IMAGES, mx.nd.array(column())),
    "an array": lambda: shuffled(IMAGES),
    "an NDArray": lambda: shuffled(mx.nd.array(IMAGES)),
    "SimpleDatasets within": lambda: shuffled(SimpleDataset(SimpleDataset(IMAGES)), column()),
    "a SimpleDataset around": lambda: shuffled(SimpleDataset(ArrayDataset(IMAGES, column()))),
    "transposed": lambda: shuffled(np.ascontiguousarray(IMAGES.T).T, column()[::-1]),
    "another CPU": lambda: shuffled(mx.nd.array(IMAGES, mx.cpu(1)), column()),
    "in order": lambda: pairs(batch_size=4),
    "rollover": lambda: pairs(batch_size=4, shuffle=True, last_batch="rollover"),
    "sampler": lambda: pairs(batch_size=3, sampler=FilterSampler(lambda i: i % 3, range(N))),
    "batch sampler": lambda: pairs(batch_sampler=BatchSampler(RandomSampler(N), 5, "keep")),
    "user-defined": lambda: pairs(batch_sampler=Batches([-1, -2, -N], (3, np.int32(3), 1), range(5))),
    "auto_reload": lambda: pairs(batch_size=4, shuffle=True, auto_reload=True),
}


def plain(batch: Any) -> Any:
    """Return a batch's types, devices and bytes."""
    if isinstance(batch, list):
        return [plain(array) for array in batch]
    return type(batch), batch.dtype, batch.shape, batch.context, batch.asnumpy().tobytes()


def outcome(read: Any, data: Any, passes: int = 1) -> Any:
    """Return the batches of some passes, or an error, and what NumPy draws next."""
    np.random.seed(3)
    try:
        batches: Any = [plain(batch) for _ in range(passes) for batch in read(data)]
    except Exception as error:
        batches = [type(error), str(error)]
    return batches, np.random.get_state()[2], np.random.rand()


@pytest.mark.parametrize("make", BY_INDEX.values(), ids=BY_INDEX)
def test_batches_by_index_are_those_of_the_loader(make: Callable[[], Any]) -> None:
    with mx.Context("cpu_shared" if make is BY_INDEX["every dtype"] else "cpu", 0):
        data = make()
        assert by_index(data) is not None
        assert outcome(iterate, data, 3) == (expected := outcome(iter, make(), 3)) and expected[0]


@pytest.mark.parametrize("index", [[slice(0, 2)], [[0, 1]], [True, True], [N], [-N - 1], []], ids=str)
def test_an_unusual_index_is_passed_to_the_data_set(index: Any) -> None:
    data = [DataLoader(IMAGES, batch_sampler=Batches(index)) for _ in range(2)]
    assert outcome(iterate, data[0]) == outcome(iter, data[1])


class Lazy(ArrayDataset):
    """A user-defined data set."""

    def __getitem__(self, index: int) -> Any:
        return tuple(part + 1 for part in super().__getitem__(index))


class Mine(DataLoader):
    """A user-defined loader."""

    def __iter__(self) -> Iterator[Any]:
        yield "mine"


OTHERS: dict[str, Callable[[], Any]] = {
    "a list": lambda: [IMAGES],
    "a subclass": lambda: Mine(IMAGES, 4),
    "threads": lambda: DataLoader(IMAGES, 4, num_workers=1, thread_pool=True),
    "batchify": lambda: DataLoader(IMAGES, 4, batchify_fn=list),
    "a user-defined data set": lambda: DataLoader(Lazy(IMAGES, column()), 4),
    "transformed": lambda: DataLoader(ArrayDataset(IMAGES, column()).transform_first(lambda x: x * 2), 4),
    "lists": lambda: DataLoader(ArrayDataset([1.0, 2.0], IMAGES[:2]), 1),
    "a vector on a device": lambda: DataLoader(mx.nd.arange(N), 4),
    "sparse": lambda: DataLoader(mx.nd.array(IMAGES[:, 0]).tostype("csr"), 4),
    "another byte order": lambda: DataLoader(IMAGES.astype(">f4"), 4),
    "objects": lambda: DataLoader(np.array([IMAGES[0], "x"], object), 1),
    "a dtype that MXNet lacks": lambda: DataLoader(column("uint16"), 4),
    "empty rows": lambda: DataLoader(np.zeros((3, 0), "float32"), 1),
    "pinned": lambda: DataLoader(IMAGES, 4, pin_memory=True),
}


def test_other_loaders_are_not_read_by_index() -> None:
    assert [name for name, make in OTHERS.items() if by_index(make()) is not None] == []


# ---------------------------------------------------------------------------------- passes, and parts of them


def test_loaders_begin_again() -> None:
    data = mx.io.NDArrayIter(np.arange(6.0), batch_size=2)
    assert list(islice(repeat([1, 2, 3]), 7)) == [1, 2, 3, 1, 2, 3, 1]
    for read, expected in (
        (lambda: islice(repeat(data), 5), [0, 2, 4, 0, 2]),
        (lambda: Loaders().iterate(data, None), [0, 2, 4]),
    ):
        assert [float(batch.data[0][0].asscalar()) for batch in read()] == expected


@pytest.mark.parametrize("batchify", [None, list], ids=["read by index", "own batchify"])
@pytest.mark.parametrize("reloads", [True, False], ids=["auto_reload", "refresh"])
def test_each_pass_over_a_loader_that_prefetches_is_whole(reloads: bool, batchify: Any) -> None:
    data = DataLoader(np.arange(14.0).reshape(7, 2), 3, batchify_fn=batchify, auto_reload=reloads)
    if not reloads:
        data.refresh()  # asks for the next pass ahead
    next(iterate(data))  # as a check reads the first batch only
    passes = [sum(map(len, iterate(data))) for _ in range(3)]
    assert [*passes, sum(map(len, data))] == [7] * 4


@pytest.mark.parametrize("kind", [DataLoader, Repeating, Limited, Scaling])
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_the_rest_of_an_epoch_of_a_loader(kind: Any, workers: int) -> None:
    """It is what followed in the epoch, also of a subclass that has not one batch for each of its sampler."""
    samples = ArrayDataset(np.arange(14.0).reshape(7, 2), np.arange(7.0))
    data = kind(samples, 2, shuffle=True, num_workers=workers)
    states, whole = [random_state()], []
    for batch in iterate(data, 0):
        whole.append([array.asnumpy().tolist() for array in batch])
        states.append(random_state())
    for skip, state in enumerate(states):
        set_random_state(states[0])
        rest = iterate_from(data, skip, partial(set_random_state, state), 0)
        assert [[array.asnumpy().tolist() for array in batch] for batch in rest] == whole[skip:]


# ------------------------------------------------------------------------------------------ MXNet's iterators


def csv(path: Path, rows: int, size: int, **options: Any) -> Any:
    file = path / "x.csv"
    np.savetxt(file, np.column_stack([np.arange(rows)] * 2), delimiter=",")
    return mx.io.CSVIter(data_csv=str(file), data_shape=(2,), batch_size=size, **options)


def libsvm(path: Path, rows: int, size: int) -> Any:
    file = path / "x.libsvm"
    file.write_text("".join(f"0 1:{i + 1}\n" for i in range(rows)), "utf-8")  # zeros would be left out
    return mx.io.LibSVMIter(data_libsvm=str(file), data_shape=(2,), batch_size=size)


def records(path: Path, rows: int, size: int, **options: Any) -> Any:
    file = str(path / "x.rec")
    record = mx.recordio.MXRecordIO(file, "w")
    for i in range(rows):
        image = np.full((4, 4, 3), 2 * i, "uint8")
        record.write(mx.recordio.pack_img(mx.recordio.IRHeader(0, i, i, 0), image, img_fmt=".png"))
    record.close()
    options = {"preprocess_threads": 1, "verbose": False, **options}
    return mx.io.ImageRecordIter(path_imgrec=file, data_shape=(3, 4, 4), batch_size=size, **options)


def arrays(path: Path | None, rows: int, size: int, **options: Any) -> Any:
    return mx.io.NDArrayIter(np.column_stack([np.arange(rows)] * 2), batch_size=size, **options)


ITERATORS: dict[str, Callable[[Path, int, int], Any]] = {
    "CSV": csv,
    "CSV, padded": partial(csv, round_batch=False),
    "LibSVM": libsvm,
    "images": records,
    "images, shuffled": partial(records, shuffle=True, seed=1),
    "arrays": arrays,
    "arrays, shuffled": partial(arrays, shuffle=True),
    "prefetched CSV": lambda *a: mx.io.PrefetchingIter(csv(*a)),
    "prefetched arrays": lambda *a: mx.io.PrefetchingIter(arrays(*a)),
}
CASES = [(name, 110, 4) for name in ITERATORS]
CASES += [(name, 10, 4) for name in ITERATORS if "arrays" in name or "padded" in name]
CASES += [(name, 12, 4) for name in ("CSV", "LibSVM", "images")]


def samples(batches: Any) -> list[int]:
    """Return the number of each sample, from the largest value in its row."""
    values = [arrays_in(batch, 0, as_numpy)[0] for batch in batches]
    return sorted(round(row.max()) for value in values for row in value)


@pytest.mark.parametrize(("name", "rows", "size"), CASES)
def test_every_epoch_holds_each_sample_once(tmp_path: Path, name: str, rows: int, size: int) -> None:
    """Except of MXNet's iterators over files of few batches that are read to their end ahead."""
    data = ITERATORS[name](tmp_path, rows, size)
    for taken in (9,) if rows == 110 else ():
        list(islice(iterate(data), taken))  # passes that are left early
    epochs = [samples(iterate(data)) for _ in range(3)]
    assert epochs == [epochs[0]] * 3 and len(set(epochs[0])) == rows


@pytest.mark.parametrize("rows", [5, 10])
def test_rows_that_roll_over_are_no_padding(rows: int) -> None:
    data = arrays(None, rows, 4, last_batch_handle="roll_over")
    counts = Counter(number for _ in range(4) for number in samples(iterate(data)))
    assert counts == dict.fromkeys(range(rows), 4)
