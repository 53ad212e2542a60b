"""Batches: number, names, kinds and sizes of their slots."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from multifit import DataError
from multifit.checks import bind_slots

import mxnet as mx  # isort: skip

from .setups import Setup, fault

STRINGS = np.array(["a", "b"] * 4)
OBJECTS = np.array([{"a": 1}] * 8, dtype=object)


# fmt: off
FAULTS = [
    fault("slot missing", lambda x, d, a: [x, d],
        "the batch has 2 arrays: (8, 6) float32, (8,) float32; declared 3 slots: ",
        '"x", "digit", "amount"; name every array in inputs= and labels= (batch= gives the'),
    fault("slot more", lambda x, d, a: [x, d, a, a], "the batch has 4 arrays", "declared 3 slots"),
    fault("one array", lambda x, d, a: x, "the batch has 1 array: (8, 6) float32; declared 3 slots"),
    fault("None", lambda x, d, a: None, "the batch has 1 array: None"),
    fault("number", lambda x, d, a: 3, "the batch has 1 array: () int64"),
    fault("string", lambda x, d, a: "abc", "the batch has 1 array: str",
        "strings are not arrays: encode them"),
    fault("list of strings", lambda x, d, a: [x, ["a"] * 8, a],
        "the batch has 10 arrays: (8, 6) float32, str, str, str, str, str, str, str and 2 more"),
    fault("list of numbers", lambda x, d, a: [x, d.tolist(), a], "the batch has 10 arrays",
        "a list of numbers counts as one array per number: make it one array"),
    fault("strings", lambda x, d, a: [x, STRINGS, a],
        'the slot "digit" is (8,) string, which a net cannot take; valid are floats, integers and bool'),
    fault("objects", lambda x, d, a: [x, OBJECTS, a],
        'the slot "digit" is (8,) object, which a net cannot take'),
    fault("complex", lambda x, d, a: [x * 1j, d, a], 'the slot "x" is (8, 6) complex64, which a net cannot'),
    fault("dates", lambda x, d, a: [x, np.array(["2026-01-01"] * 8, "M8[D]"), a],
        "(8,) datetime64[D], which a net"),
    fault("label is None", lambda x, d, a: [x, None, a],
        'the slot "digit" is None, but losses or metrics take it; the batch must hold an array'),
    fault("label is a scalar", lambda x, d, a: [x, np.float32(1), a],
        'the slot "digit" is () float32, which has no batch axis 0; a batch holds one row for each sample'),
    fault("samples differ", lambda x, d, a: [x, d[:7], a],
        "the slots hold different numbers of samples along axis 0: x (8, 6) float32, digit (7,) float32, "
        "amount (8, 1) float32; make them equal"),
    fault("transposed", lambda x, d, a: [x, d, a.T], "different numbers of samples", "amount (1, 8) float32"),
    fault("no samples", lambda x, d, a: [x[:0], d[:0], a[:0]], "the batch holds no sample"),
    fault("slot is a dict of strings", lambda x, d, a: {"x": x, "digit": "a", "amount": a},
        "the slot \"digit\" holds 'a', which is not an array; valid are NDArrays and NumPy arrays"),
    fault("key missing", lambda x, d, a: {"x": x, "digt": d, "amount": a}, "1 problem found:",
        'the batch has no "digit" (did you mean "digt"?); its keys are "x", "digt", "amount"'),
    fault("key more", lambda x, d, a: {"x": x, "digit": d, "amount": a, "index": d},
        'the batch also has "index", which is not declared; declared are "x", "digit", "amount"',
        "declare it as a label, or name it in batch= and in unused="),
    fault("keys of another kind", lambda x, d, a: {0: x, 1: d, 2: a},
        'the batch has no "x"; its keys are "0", "1"'),
    fault("empty dict", lambda x, d, a: {}, 'the batch has no "x"; its keys are none'),
]
# fmt: on


@pytest.mark.parametrize(("batch", "texts"), FAULTS)
@pytest.mark.parametrize("where", ["data", "val_data"])
def test_a_wrong_batch_is_an_error(setup: Setup, batch: Any, texts: tuple, where: str) -> None:
    setup.but(**{where: [batch(*setup.data[0])]}).refused(DataError, *texts)


def test_the_message_names_the_validation_data(setup: Setup) -> None:
    setup.but(val_data=[setup.data[0][:2]]).refused(DataError, "1. val_data: the batch has 2 arrays")


@pytest.mark.parametrize(
    "dtype", ["float64", "bool", "int16", "uint16", "uint32", "uint64", "uint8", "int64"]
)
def test_dtypes_that_can_be_used(setup: Setup, dtype: str) -> None:
    """What MXNet lacks, or fails on in the background, is cast."""
    x, digit, amount = setup.data[0]
    binary = (digit > 0).astype(dtype)
    setup.but(data=[[x, binary, amount]]).trains()
    if dtype in ("bool", "int64"):
        setup.but(data=[[x, mx.nd.array(binary, dtype=dtype), amount]]).trains()
    if dtype in ("float64", "bool"):
        setup.but(data=[[(x > 0).astype(dtype), digit, amount]]).trains()


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (None, "the batch has 1 array: None"),
        ({"x": 1}, 'the batch has no "digit"; its keys are "x"'),
        ("abc", "the batch has 1 array: str"),
    ],
)
def test_what_a_batch_fn_returns(setup: Setup, result: Any, text: str) -> None:
    setup.but(batch_fn=lambda batch: result).refused(DataError, text)


def test_a_batch_fn_may_return_slots_by_name(setup: Setup) -> None:
    setup.but(batch_fn=lambda batch: dict(zip(["x", "digit", "amount"], batch))).trains()


def test_a_wrong_batch_later_stops_the_fit_with_the_same_message(setup: Setup) -> None:
    estimator = setup.make()
    with pytest.raises(DataError, match="the batch has 2 arrays"):
        estimator.fit([setup.data[0], setup.data[0][:2]], epochs=1)
    assert estimator.state.step == 1
    estimator.fit(setup.data, epochs=1)


def test_predicting_takes_the_inputs_alone_or_everything(setup: Setup) -> None:
    estimator = setup.make()
    x, digit, _ = setup.data[0]
    with pytest.raises(DataError, match=r'declared 3 slots: .* \(or the inputs alone: "x"\)'):
        estimator.predict((x, digit))
    with pytest.raises(DataError, match='the batch has no "x"; its keys are "y"'):
        estimator.predict({"y": x})
    with pytest.raises(DataError):
        estimator.predict([None])
    assert estimator.predict({"x": x})["digit"].shape == (8, 3)


def test_one_slot_is_in_the_singular() -> None:
    (problem,) = bind_slots(["x"], ["x"], [1, 2])[1]
    assert 'declared 1 slot: "x"' in problem.message
