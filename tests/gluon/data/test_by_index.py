"""by_index yields the loader's own batches, bit for bit; new_array makes arrays with values of their own."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from multifit.engines.loaders import iterate
from multifit.gluon.data.arrays import new_array, new_rows
from multifit.gluon.data.loaders import by_index

import mxnet as mx  # isort: skip
from mxnet.gluon.data import (
    ArrayDataset,
    BatchSampler,
    DataLoader,
    FilterSampler,
    RandomSampler,
    SequentialSampler,
    SimpleDataset,
)  # isort: skip

N = 11


DTYPES = ["float16", "float32", "float64", "uint8", "int8", "int32", "int64", "bool"]


def column(dtype: str = "float32", *shape: int) -> np.ndarray:
    values = np.random.RandomState(1).randint(0, 100, (N, *shape))
    return (values % 2 == 0) if dtype == "bool" else values.astype(dtype)


def images() -> np.ndarray:
    return np.random.RandomState(2).randn(N, 3, 2).astype("float32")


class Backwards(BatchSampler):
    """A user-defined batch sampler: negative indices, a tuple, an array, a range."""

    def __init__(self) -> None:
        super().__init__(SequentialSampler(N), 4)

    def __iter__(self) -> Iterator[Any]:
        yield [-1, -2, -N]
        yield (3, np.int32(3), 1)
        yield np.random.permutation(N)[:2]
        yield range(5)


DATASETS: dict[str, Callable[[], Any]] = {
    "every dtype": lambda: ArrayDataset(
        *(column(dtype, *shape) for dtype in DTYPES for shape in ((), (4,))),
        *(mx.nd.array(column(dtype, 4), dtype=dtype) for dtype in DTYPES),
    ),
    "one column": lambda: ArrayDataset(images()),
    "a vector on a device among columns": lambda: ArrayDataset(images(), mx.nd.array(column())),
    "an array": images,
    "an NDArray": lambda: mx.nd.array(images()),
    "SimpleDatasets within": lambda: ArrayDataset(SimpleDataset(SimpleDataset(images())), column()),
    "a SimpleDataset around": lambda: SimpleDataset(ArrayDataset(images(), column())),
    "transposed": lambda: ArrayDataset(np.ascontiguousarray(images().T).T, column()[::-1]),
    "another CPU": lambda: ArrayDataset(mx.nd.array(images(), mx.cpu(1)), column()),
}
SAMPLERS: dict[str, Callable[[], dict[str, Any]]] = {
    "in order": lambda: {"batch_size": 4},
    "rollover": lambda: {"batch_size": 4, "shuffle": True, "last_batch": "rollover"},
    "sampler": lambda: {"batch_size": 3, "sampler": FilterSampler(lambda i: i % 3, range(N))},
    "batch sampler": lambda: {"batch_sampler": BatchSampler(RandomSampler(N), 5, "keep")},
    "user-defined": lambda: {"batch_sampler": Backwards()},
    "auto_reload": lambda: {"batch_size": 4, "shuffle": True, "auto_reload": True},
}


def equal(one: Any, two: Any) -> bool:
    if isinstance(one, list):
        return type(one) is type(two) and len(one) == len(two) and all(map(equal, one, two))
    return (
        type(one) is type(two) is mx.nd.NDArray
        and (one.dtype, one.shape, one.context) == (two.dtype, two.shape, two.context)
        and one.asnumpy().tobytes() == two.asnumpy().tobytes()
    )


def three_epochs(batches: Callable[[], Any]) -> tuple[list[Any], Any]:
    """Return the batches, and NumPy's random state behind them."""
    np.random.seed(3)
    return [batch for _ in range(3) for batch in batches()], np.random.get_state()[1:3]


def compare(make: Callable[[], Any]) -> None:
    """Compare three epochs of two loaders, one of them read by index."""
    loader, other = make(), make()
    assert by_index(loader) is not None
    expected, expected_state = three_epochs(lambda: loader)
    batches, state = three_epochs(lambda: iterate(other))
    assert equal(batches, expected) and expected
    np.testing.assert_equal(state, expected_state)


@pytest.mark.parametrize("dataset", DATASETS.values(), ids=DATASETS)
def test_datasets(dataset: Callable[[], Any]) -> None:
    compare(lambda: DataLoader(dataset(), 4, shuffle=True))


@pytest.mark.parametrize("options", SAMPLERS.values(), ids=SAMPLERS)
def test_samplers(options: Callable[[], dict[str, Any]]) -> None:
    compare(lambda: DataLoader(ArrayDataset(images(), mx.nd.array(column("int32", 2))), **options()))


@pytest.mark.parametrize("context", [mx.cpu(1), mx.Context("cpu_shared", 0)], ids=str)
def test_batches_are_on_the_current_context(context: Any) -> None:
    with context:
        compare(lambda: DataLoader(ArrayDataset(images(), column()), 4))


class Lazy(ArrayDataset):
    """A user-defined data set."""

    def __getitem__(self, index: int) -> Any:
        return tuple(part + 1 for part in super().__getitem__(index))


class Own(DataLoader):
    """A user-defined loader."""

    def __iter__(self) -> Iterator[Any]:
        yield "mine"


OTHERS: dict[str, Callable[[], Any]] = {
    "a list": lambda: [images()],
    "a subclass": lambda: Own(images(), 4),
    "threads": lambda: DataLoader(images(), 4, num_workers=1, thread_pool=True),
    "batchify": lambda: DataLoader(images(), 4, batchify_fn=list),
    "a user-defined data set": lambda: DataLoader(Lazy(images(), column()), 4),
    "transformed": lambda: DataLoader(ArrayDataset(images(), column()).transform_first(lambda x: x * 2), 4),
    "lists": lambda: DataLoader(ArrayDataset([1.0, 2.0], images()[:2]), 1),
    "a vector on a device": lambda: DataLoader(mx.nd.arange(N), 4),
    "sparse": lambda: DataLoader(mx.nd.array(images()[:, 0]).tostype("csr"), 4),
    "another byte order": lambda: DataLoader(images().astype(">f4"), 4),
    "objects": lambda: DataLoader(np.array([images()[0], "x"], object), 1),
    "a dtype that MXNet lacks": lambda: DataLoader(column("uint16"), 4),
    "empty rows": lambda: DataLoader(np.zeros((3, 0), "float32"), 1),
    "pinned": lambda: DataLoader(images(), 4, pin_memory=True),
}


@pytest.mark.parametrize("make", OTHERS.values(), ids=OTHERS)
def test_other_loaders_are_not_read_by_index(make: Callable[[], Any]) -> None:
    assert by_index(make()) is None


class Strange:
    """A batch sampler whose batches are not lists of integers."""

    def __init__(self, *batches: Any) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)


@pytest.mark.parametrize("batch", [[slice(0, 2)], [[0, 1]], [True, True]], ids=["slice", "list", "bools"])
def test_an_unusual_index_is_passed_to_the_data_set(batch: Any) -> None:
    expected = list(DataLoader(images(), batch_sampler=Strange(batch)))
    assert equal(list(iterate(DataLoader(images(), batch_sampler=Strange(batch)))), expected)


@pytest.mark.parametrize(("batch", "error"), [([N], IndexError), ([-N - 1], IndexError), ([], Exception)])
def test_a_wrong_index_raises_the_loaders_own_error(batch: Any, error: type) -> None:
    loader = DataLoader(images(), batch_sampler=Strange(batch))
    with pytest.raises(error) as expected:
        list(loader)
    with pytest.raises(error) as caught:
        list(iterate(loader))
    assert (type(caught.value), str(caught.value)) == (type(expected.value), str(expected.value))


@pytest.mark.parametrize("array", [np.array, mx.nd.array], ids=["numpy", "ndarray"])
def test_batch_and_data_share_no_memory(array: Callable[..., Any]) -> None:
    data = array(images())
    batches = list(iterate(DataLoader(data, 4)))
    for batch in batches:
        batch[:] = -1.0
    assert np.array_equal(data if isinstance(data, np.ndarray) else data.asnumpy(), images())
    batches = list(iterate(DataLoader(data, 4)))
    data[:] = 7.0
    assert np.array_equal(np.concatenate([b.asnumpy() for b in batches]), images())


GRID = np.arange(24).reshape(2, 3, 4)
VALUES: dict[str, Any] = {
    **{dtype: column(dtype, 3) for dtype in DTYPES},
    "a view": GRID.astype("float32")[:, ::2].transpose(2, 0, 1),
    "another order of bytes": GRID.astype(">f4"),
    "read only": np.broadcast_to(np.float32(3), (2, 2)),
    "numbers": (1.0, 2.5),
    "nothing": np.zeros((0, 3), "float32"),
}


@pytest.mark.parametrize("context", [None, mx.cpu(0), mx.cpu(1)], ids=str)
@pytest.mark.parametrize("name", VALUES)
def test_values_and_dtype_are_kept(name: str, context: Any) -> None:
    values = np.asarray(VALUES[name])
    array = new_array(VALUES[name], context)
    assert (np.dtype(array.dtype).name, array.context) == (values.dtype.name, context or mx.cpu(0))
    np.testing.assert_array_equal(array.asnumpy(), values)
    assert np.dtype(new_array(values, context, "float64").dtype) == np.float64


def test_the_memory_is_its_own() -> None:
    source = GRID.astype("float32")
    array, rows = new_array(source), new_rows(source, np.array([1, -1]))
    source[:] = 0
    np.testing.assert_array_equal(array.asnumpy(), GRID)
    np.testing.assert_array_equal(rows.asnumpy(), GRID[[1, 1]])
