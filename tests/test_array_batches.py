"""`multifit.batches`: the batches of arrays, frames, lists and memory maps, and what it refuses."""

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse

from multifit import DataError, batches

import mxnet as mx  # isort: skip
from mxnet import gluon  # isort: skip

X, Y = np.arange(20.0).reshape(10, 2), np.arange(10)


def joined(loader: Any) -> list[np.ndarray]:
    """Return the slots of all batches, joined."""
    return [np.concatenate(arrays) for arrays in zip(*loader)]


@pytest.mark.parametrize("last", ["keep", "discard"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_the_batches_are_those_of_gluons_data_loader(shuffle: bool, last: Any) -> None:
    options = {"batch_size": 4, "shuffle": shuffle, "last_batch": last}
    ours, gluons = batches(X, Y, **options), gluon.data.DataLoader(gluon.data.ArrayDataset(X, Y), **options)
    assert len(ours) == len(gluons)
    for seed in (0, 1):  # each pass begins again, in its own order
        np.random.seed(seed)
        expected = [[array.asnumpy() for array in batch] for batch in gluons]
        np.random.seed(seed)
        read = list(ours)
        assert len(read) == len(expected) == 3 - (last == "discard")
        for batch, arrays in zip(read, expected):
            assert [array.dtype for array in batch] == [X.dtype, Y.dtype]
            np.testing.assert_array_equal(batch[0], arrays[0])
            np.testing.assert_array_equal(batch[1], arrays[1])


def test_a_pass_that_shuffles_has_an_order_of_its_own() -> None:
    loader = batches(Y, batch_size=3, shuffle=True)
    first, second = joined(loader)[0], joined(loader)[0]
    assert (first != second).any() and sorted(first) == sorted(second) == list(Y)


def test_slots_in_order_are_tuples_and_by_name_dicts() -> None:
    assert [len(batch) for batch in batches(X, Y, Y, batch_size=8)] == [3, 3]
    for loader in (batches(image=X, digit=Y), batches({"image": X, "digit": Y})):
        (batch,) = loader
        assert list(batch) == ["image", "digit"]
        np.testing.assert_array_equal(batch["image"], X)
    assert list(next(iter(batches({"shuffle": X})))) == ["shuffle"]
    assert (
        repr(batches(x=X, y=Y)) == "batches(x (10, 2) float64, y (10,) int64, batch_size=32, shuffle=False)"
    )


FRAME = pd.DataFrame({"age": [31, 54, 47], "weight": [60.5, 80.0, 71.0], "smokes": [True, False, False]})
NULLABLE = pd.DataFrame({"a": pd.array([1, None, 3], "Int64"), "b": pd.array([1, 2, 3], "Int8")})
KINDS: dict[str, tuple[Any, Any]] = {
    "list": ([[1, 2], [3, 4]], np.array([[1, 2], [3, 4]])),
    "list of arrays": (list(X), X),
    "frame": (FRAME, np.array([[31, 60.5, 1], [54, 80, 0], [47, 71, 0]])),
    "frame of one dtype": (FRAME[["age"]], np.array([[31], [54], [47]])),
    "series": (FRAME["weight"], np.array([60.5, 80, 71])),
    "index that is not in order": (FRAME.set_index(np.array([2, 0, 1]))["age"], np.array([31, 54, 47])),
    "same name twice": (FRAME[["age", "age"]], np.array([[31, 31], [54, 54], [47, 47]])),
    "pandas' own dtypes": (NULLABLE, np.array([[1, 1], [np.nan, 2], [3, 3]])),
    "pandas' own integers": (NULLABLE["b"], np.array([1, 2, 3], "int8")),
    "sparse series": (pd.Series(pd.arrays.SparseArray([0.0, 1.0, 0.0])), np.array([0.0, 1, 0])),
    "NDArray": (mx.nd.array([[1.0, 2]]), np.array([[1, 2]], "float32")),
    "bool": (np.array([True, False]), np.array([True, False])),
}


@pytest.mark.parametrize("kind", KINDS)
def test_anything_with_rows_of_numbers_is_an_array(kind: str) -> None:
    given, expected = KINDS[kind]
    (array,) = joined(batches(given, batch_size=2))
    assert type(array) is np.ndarray and array.dtype == expected.dtype
    np.testing.assert_array_equal(array, expected)


def test_sparse_rows_stay_sparse() -> None:
    (batch,) = batches(scipy.sparse.coo_matrix(X), Y)
    assert batch[0].format == "csr"
    np.testing.assert_array_equal(batch[0].toarray(), X)


def test_a_memory_map_is_read_batch_by_batch(tmp_path: Path) -> None:
    array = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", "float32", (4000, 1000))
    array[3999] = 7
    tracemalloc.start()
    for (batch,) in batches(np.load(tmp_path / "x.npy", mmap_mode="r"), batch_size=50, shuffle=True):
        assert type(batch) is np.ndarray
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 200_000 < peak < 2_000_000  # the map has 16 MB, and two batches 400 kB


def test_batches_share_no_memory_with_the_arrays() -> None:
    (batch,) = batches(X)
    assert not np.shares_memory(batch[0], X)


TEXT = pd.DataFrame({"age": [1, 2], "name": ["a", "b"], "day": pd.to_datetime(["2020", "2021"])})
IS_OLD = np.lib.NumpyVersion(np.__version__) < "1.24.0"
RAGGED = "is (2,) object, not numbers; " if IS_OLD else "array 1 cannot be read as an array: setting an array"
REFUSED: dict[str, tuple[Any, str]] = {
    "nothing": (lambda: batches(), "there is no array; give batches(x, y)"),
    "an empty dict": (lambda: batches({}), "there is no array; give batches(x, y)"),
    "no sample": (lambda: batches(X[:0], Y[:0]), "the arrays are empty: they have no sample"),
    "other numbers": (
        lambda: batches(image=X, digit=Y[:9]),
        "have different numbers of samples: image (10, 2) float64, digit (9,) int64; give each one row"),
    "in order and by name": (
        lambda: batches(X, y=Y), "give all arrays in order, batches(x, y), or all by name, batches(image=x"),
    "two dicts": (lambda: batches({"x": X}, {"y": Y}), "give all arrays in order"),
    "a misspelt option": (
        lambda: batches(X, batchsize=4), 'and no option "batchsize" (did you mean "batch_size"?)'),
    "an option among names": (
        lambda: batches(x=X, shufle=True), '"shufle" is the number True; give an array with a row for each '
        'sample (did you mean "shuffle"?)'),
    "columns without numbers": (
        lambda: batches(TEXT, Y[:2]), 'array 1 has columns without numbers: "name" ('),
    "dates": (lambda: batches(TEXT), '"day" (datetime64['),
    "categories": (lambda: batches(FRAME.astype("category")), '"age" (category), "weight" (category), '),
    "a series of strings": (lambda: batches(y=TEXT["name"]), '"y" has columns without numbers: "name" ('),
    "no columns": (lambda: batches(FRAME[[]]), "has columns without numbers: none at all"),
    "strings": (lambda: batches(["a", "b"]), "array 1 is (2,) string, not numbers; encode strings"),
    "rows of other lengths": (lambda: batches([[1], [1, 2]]), RAGGED),
    "a generator": (lambda: batches(iter([1])), "is a list_iterator, not numbers"),
    "an array that cannot be read": (
        lambda: batches(Broken()), "cannot be read as an array: use Tensor.cpu() first"),
    "nothing left": (
        lambda: batches(X, last_batch="discard"),
        '10 samples are fewer than batch_size=32, and last_batch="discard" leaves no batch'),
}  # fmt: skip


class Broken:
    """As a tensor on a GPU."""

    def __array__(self, *arguments: Any, **options: Any) -> Any:
        raise TypeError("use Tensor.cpu() first")


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_cut_into_batches_is_refused(case: str) -> None:
    make, message = REFUSED[case]
    with pytest.raises(DataError) as caught:
        make()
    assert message in str(caught.value) and "batches: " in str(caught.value)


def test_all_that_is_wrong_is_reported_together() -> None:
    with pytest.raises(DataError) as caught:
        batches(x=TEXT, y=["a", "b"])
    assert len(caught.value.problems) == 2


@pytest.mark.parametrize(
    ("option", "valid"),
    [
        ({"batch_size": 0}, "a whole number of at least 1"),
        ({"last_batch": "rollover"}, '"keep" or "discard"'),
    ],
)
def test_options_are_checked(option: Any, valid: str) -> None:
    with pytest.raises(ValueError, match=valid):
        batches(X, **option)
