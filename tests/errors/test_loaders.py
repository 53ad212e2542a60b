"""Loaders: empty, readable only once, not loaders at all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from multifit import DataError

import mxnet as mx  # isort: skip
from mxnet import gluon

from .setups import Setup, arrays


class Once:
    """An iterator over one batch, without a way back."""

    def __init__(self, batches: list) -> None:
        self._batches = iter(batches)

    def __iter__(self) -> Once:
        return self

    def __next__(self) -> Any:
        return next(self._batches)


class Indexed:
    """Batches for any index, over which Python would iterate for ever."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return np.ones((8, 6)), np.zeros(8), np.zeros((8, 1))


def data_set(name: str) -> str:
    return (
        f"is a data set of single items ({name}); give a DataLoader of it, "
        "or, if the items are batches, [data[i] for i in range(len(data))]"
    )


# fmt: off
NO_LOADERS = {
    "samples": (gluon.data.ArrayDataset(np.ones((8, 6)), np.zeros(8)), data_set("ArrayDataset")),
    "batches, as gluonnlp's CorpusBPTTBatchify makes them": (
        gluon.data.SimpleDataset([Indexed()[0]]), data_set("SimpleDataset")),
    "what is only indexed": (Indexed(), data_set("Indexed")),
    "NDArray": (mx.nd.ones((8, 6)), "is one array, (8, 6) float32, not a loader of batches; give DataLoad"),
    "NumPy array": (np.ones(8), "is one array, (8,) float64, not a loader of batches; give DataLoader"),
    "class": (lambda: gluon.nn.Dense, "is <class 'mxnet.gluon.nn.basic_layers.Dense'>, which yields no"),
    "number": (3, "is 3, which yields no batches; give a DataLoader, a DataIter or a list of batches"),
    "string": ("train", "is 'train', which yields no batches"),
    "module": (np, "is <module 'numpy' from "),  # which has a function called shape
    "dict of what is empty": ({"digit": []}, '["digit"] is empty: it yields no batch; give it at least one'),
    "empty list": ([], 'is empty: it yields no batch; give it at least one (check last_batch="discard")'),
}
# fmt: on


@pytest.mark.parametrize(("loader", "text"), NO_LOADERS.values(), ids=NO_LOADERS)
@pytest.mark.parametrize("where", ["data", "val_data"])
def test_what_is_not_a_loader(setup: Setup, loader: Any, text: str, where: str) -> None:
    name = {"data": "train_data", "val_data": "val_data"}[where]
    text = text if text[0] == "[" else f" {text}"
    setup.but(**{where: loader}).refused(DataError, f"1. {name}{text}")
    setup.but(**{where: loader}).refused(DataError, text, way="check")


def test_none_is_not_training_data(setup: Setup) -> None:
    setup.but(data=None).refused(DataError, "is None, which yields no batches")


def test_a_loader_that_discards_its_only_batch(setup: Setup) -> None:
    data = gluon.data.ArrayDataset(*setup.data[0])
    loader = gluon.data.DataLoader(data, batch_size=9, last_batch="discard")
    setup.but(data=loader).refused(DataError, "is empty: it yields no batch")
    setup.but(data=gluon.data.DataLoader(data, batch_size=9)).trains()


def test_an_empty_generator_is_an_error_when_it_is_read(setup: Setup) -> None:
    setup.but(data=lambda: iter(())).refused(DataError, "is empty: it yields no batch")
    setup.but(val_data=lambda: iter(())).refused(DataError, "val_data is empty")


@pytest.mark.parametrize(
    "once", [lambda data: (batch for batch in data), Once], ids=["generator", "iterator"]
)
def test_what_can_be_read_only_once(setup: Setup, once: Any) -> None:
    faulty = setup.but(data=lambda: once(setup.data), epochs=2)
    text = "which can be read only once, but every epoch needs it; give a DataLoader or a list"
    faulty.refused(DataError, "train_data is a ", text)
    validation = setup.but(val_data=lambda: once(setup.data), epochs=2)
    validation.refused(DataError, "val_data is a ", text)
    faulty.but(epochs=1).trains()


def test_a_data_iter_is_reset(setup: Setup) -> None:
    x, digit, amount = setup.data[0]
    loader = mx.io.NDArrayIter(x, [digit, amount], batch_size=4)
    setup.but(data=loader, epochs=2).trains()


def test_other_methods_raise_the_same_errors(setup: Setup) -> None:
    estimator = setup.make()
    for way in (estimator.evaluate, estimator.predict, estimator.check):
        with pytest.raises(DataError, match="data is empty: it yields no batch"):
            way([])
    with pytest.raises(DataError, match="data is 3, which yields no batches"):
        estimator.evaluate(3)


@pytest.mark.parametrize("error", [TypeError, NotImplementedError])
def test_a_length_of_no_use_is_ignored(setup: Setup, error: type[Exception]) -> None:
    class Odd(list):
        def __len__(self) -> int:
            raise error

    setup.but(data=Odd(setup.data)).trains()


class Reading:
    """Reads data after the first batch."""

    def __init__(self, read: Any) -> None:
        self.read = read

    def batch_end(self, estimator: Any) -> None:
        if estimator.state.step == 1:
            self.read()


def data_iter() -> Any:
    x, digit, amount = arrays(24)
    return mx.io.NDArrayIter({"x": x}, {"digit": digit, "amount": amount}, 8)


@pytest.mark.parametrize(
    ("data", "other"),
    [
        ([arrays()] * 3, None),
        (gluon.data.DataLoader(gluon.data.ArrayDataset(*arrays(24)), 8), None),
        (data_iter(), data_iter()),
    ],
    ids=["list", "DataLoader", "another iterator"],
)
def test_other_loaders_are_read_while_an_epoch_reads_them(setup: Setup, data: Any, other: Any) -> None:
    estimator = setup.make()
    read = Reading(lambda: estimator.evaluate(data if other is None else other))
    estimator.fit(data, data, epochs=1, event_handlers=read)
    assert estimator.state.step == 3


@pytest.mark.parametrize("convert", [np.asarray, mx.nd.array])
@pytest.mark.parametrize("labels", [1, 2])
def test_data_and_labels_in_place_of_loaders_say_what_happened(
    setup: Setup, convert: Any, labels: int
) -> None:
    x, digit, amount = map(convert, setup.data[0])
    y, names = (digit, "X, y") if labels == 1 else ([digit, amount], "X, y1, y2")
    setup.but(data=x, val_data=y).refused(
        DataError,
        "data is one array, (8, 6) float32, and the second argument, (8,) float32",
        "is taken for val_data; labels belong into the batches of the first argument: ",
        f"DataLoader(ArrayDataset({names}), batch_size=32, shuffle=True)",
    )


def test_lists_of_numbers_may_be_batches(setup: Setup) -> None:
    x, digit, amount = setup.data[0]
    rows = {"batch_fn": lambda rows: {"x": x[rows], "digit": digit[rows], "amount": amount[rows]}}
    setup.but(data=[[0, 1], [2, 3]], val_data=[[4, 5]], **rows).fit()


def test_data_and_labels_in_place_of_loaders_come_before_the_number_of_epochs(setup: Setup) -> None:
    with pytest.raises(DataError, match="is taken for val_data"):
        setup.make().fit(*setup.data[0][:2])
