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
    "what is only indexed": (Indexed(), data_set("Indexed")),
    "NDArray": (mx.nd.ones((8, 6)), "is one array, (8, 6) float32, not a loader of batches; give multifit."),
    "number": (3, "is 3, which yields no batches; give a DataLoader, a DataIter or a list of batches"),
    "dict of what is empty": ({"digit": []}, '["digit"] is empty: it yields no batch; give it at least one'),
    "empty list": ([], 'is empty: it yields no batch; give it at least one (check last_batch="discard")'),
}
# fmt: on


@pytest.mark.parametrize(("loader", "text"), NO_LOADERS.values(), ids=NO_LOADERS)
def test_what_is_not_a_loader(setup: Setup, loader: Any, text: str) -> None:
    text = text if text[0] == "[" else f" {text}"
    setup.but(data=loader).refused(DataError, f"1. train_data{text}")
    setup.but(val_data=loader).refused(DataError, f"1. val_data{text}")
    setup.but(data=loader).refused(DataError, text, way="check")


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


def test_other_methods_raise_the_same_errors(setup: Setup) -> None:
    estimator = setup.make()
    for way in (estimator.evaluate, estimator.predict, estimator.check):
        with pytest.raises(DataError, match="data is empty: it yields no batch"):
            way([])
    with pytest.raises(DataError, match="data is 3, which yields no batches"):
        estimator.evaluate(3)


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


@pytest.mark.parametrize("labels", [1, 2])
def test_data_and_labels_in_place_of_loaders_say_what_happened(setup: Setup, labels: int) -> None:
    x, digit, amount = setup.data[0]
    y, names = (digit, "X, y") if labels == 1 else ([digit, amount], "X, y1, y2")
    setup.but(data=x, val_data=y).refused(
        DataError,
        "data is one array, (8, 6) float32, and the second argument, (8,) float32",
        "is taken for val_data; labels belong into the batches of the first argument: ",
        f"multifit.batches({names}, batch_size=32, shuffle=True)",
    )


def test_an_empty_generator_is_an_error_when_it_is_read(setup: Setup) -> None:
    setup.but(data=lambda: iter(())).refused(DataError, "is empty: it yields no batch")
    setup.but(val_data=lambda: iter(())).refused(DataError, "val_data is empty")


def test_validation_data_without_a_batch_are_refused_by_a_check_too(setup: Setup) -> None:
    setup.but(val_data=lambda: iter(())).refused(DataError, "val_data is empty", way="check")
