"""Batches: number, names, kinds and sizes of their slots."""

from typing import Any

import numpy as np
import pytest

from multifit import DataError, LabelSpec, Shards, TaskSpec
from multifit.checks import bind_slots

import mxnet as mx  # isort: skip

from .setups import Setup, fault

STRINGS = np.array(["a", "b"] * 4)
OBJECTS = np.array([{"a": 1}] * 8, dtype=object)


def padded(pad: Any, x: Any, *labels: Any) -> Any:
    return mx.io.DataBatch([x], list(labels), pad=pad)


# fmt: off
FAULTS = [
    fault("slot missing", lambda x, d, a: [x, d],
        "the batch has 2 arrays: (8, 6) float32, (8,) float32; declared 3 slots: ",
        '"x", "digit", "amount"; name every array in inputs= and labels= (batch= gives the'),
    fault("slot more", lambda x, d, a: [x, d, a, a], "the batch has 4 arrays", "declared 3 slots"),
    fault("split", lambda x, d, a: [[part[:4], part[4:]] for part in (x, d, a)], "the batch has 6 arrays",
        "; if these are the parts of several devices, declare batch_fn=Shards"),
    fault("one array", lambda x, d, a: x, "the batch has 1 array: (8, 6) float32; declared 3 slots",
        "if this array is the whole data, give DataLoader(ArrayDataset(data, label), batch_size=32)"),
    fault("None", lambda x, d, a: None, "the batch has 1 array: None"),
    fault("number", lambda x, d, a: 3, "the batch has 1 array: () int64"),
    fault("string", lambda x, d, a: "abc", "the batch has 1 array: str",
        "strings are not arrays: encode them"),
    fault("list of strings", lambda x, d, a: [x, ["a"] * 8, a],
        "the batch has 10 arrays: (8, 6) float32, str, str, str, str, str, str, str, and 2 more"),
    fault("list of numbers", lambda x, d, a: [x, d.tolist(), a], "the batch has 10 arrays",
        "a list of numbers counts as one array per number: make it one array"),
    fault("strings", lambda x, d, a: [x, STRINGS, a],
        'the slot "digit" is (8,) string, which a net cannot take; valid are floats, integers and bool'),
    fault("objects", lambda x, d, a: [x, OBJECTS, a],
        'the slot "digit" is (8,) object, which a net cannot take'),
    fault("masked", lambda x, d, a: [x, d, np.ma.masked_less(a, a.max())],
        'the slot "amount" is (8, 1) float32, some of it masked',
        'fill it, as with array.filled(-1), and declare a label as LabelSpec("amount", missing=-1)'),
    fault("masked records", lambda x, d, a: [x, np.ma.masked_array(np.zeros(8, [("a", "f4")])), a],
        'the slot "digit" is (8,) void32, which a net cannot take'),
    fault("complex", lambda x, d, a: [x * 1j, d, a], 'the slot "x" is (8, 6) complex64, which a net cannot'),
    fault("dates", lambda x, d, a: [x, np.array(["2026-01-01"] * 8, "M8[D]"), a],
        "(8,) datetime64[D], which a net"),
    fault("label is None", lambda x, d, a: [x, None, a],
        'the slot "digit" is None, but losses or metrics take it; the batch must hold an array',
        'if samples may lack this label, declare LabelSpec("digit", missing=...)'),
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
    fault("all padding", lambda x, d, a: padded(8, x, d, a), "the batch holds no sample: x (0, 6)"),
    fault("strings in a DataBatch", lambda x, d, a: padded(0, "x", d, a), "the slot \"x\" holds 'x'"),
    fault("more shards than devices", lambda x, d, a: Shards([(x, d, a), (x, d, a)]),
        "the batch is split into 2 parts for 1 device; give one part for each, or fewer"),
    fault("no shards", lambda x, d, a: Shards(), "the batch is split into 0 parts"),
    fault("a wrong shard", lambda x, d, a: Shards([(x, d)]), "the batch has 2 arrays"),
    fault("empty dict", lambda x, d, a: {}, 'the batch has no "x"; its keys are none'),
]
# fmt: on


@pytest.mark.parametrize(("batch", "texts"), FAULTS)
@pytest.mark.parametrize(("where", "way"), [("data", "fit"), ("val_data", "check")])
def test_a_wrong_batch_is_an_error(setup: Setup, batch: Any, texts: tuple, where: str, way: str) -> None:
    setup.but(**{where: [batch(*setup.data[0])]}).refused(DataError, *texts, way=way)


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
        (None, "batch_fn returns None; let it return the batch"),
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


LATER = {
    "a label is None": (
        lambda x, d, a: [x, None, a],
        'the slot "digit" is None, but was (8,) float32 in the',
    ),
    "more axes": (lambda x, d, a: [x, x, a], '"digit" is (8, 6) float32, but was (8,) float32 in the first'),
    "more axes of an input": (
        lambda x, d, a: [x[:, :, None], d, a],
        '"x" is (8, 6, 1) float32, but was (8, 6)',
    ),
    "fewer axes": (lambda x, d, a: [x[:, 0], d, a], '"x" is (8,) float32, but was (8, 6) float32'),
    "integers": (lambda x, d, a: [x.astype("int32"), d, a], '"x" is (8, 6) int32, but was (8, 6) float32'),
}


@pytest.mark.parametrize(("later", "text"), LATER.values(), ids=LATER)
@pytest.mark.parametrize("convert", [np.asarray, mx.nd.array], ids=["numpy", "ndarray"])
def test_later_batches_have_the_form_of_the_first(setup: Setup, later: Any, text: str, convert: Any) -> None:
    def batch(arrays: Any) -> list[Any]:
        return [
            None if a is None else a if convert is np.asarray else convert(a, dtype=a.dtype) for a in arrays
        ]

    estimator = setup.make()
    with pytest.raises(DataError) as raised:
        estimator.fit([batch(setup.data[0]), batch(later(*setup.data[0]))], epochs=1)
    assert text in str(raised.value) and estimator.state.step == 1


def test_later_labels_may_have_axes_of_length_1(setup: Setup) -> None:
    x, digit, amount = setup.data[0]
    setup.but(data=[[x, digit, amount], [x, digit[:, None], amount[:, 0]]]).trains()


def test_a_missing_label_stays_missing(setup: Setup) -> None:
    x, digit, amount = setup.data[0]
    estimator = setup.but(labels=["digit", "amount", "name"], unused=["name"]).make()
    with pytest.raises(
        DataError, match=r'the slot "name" is \(8,\) float32, but was None in the first batch'
    ):
        estimator.fit([(x, digit, amount, None), (x, digit, amount, digit)], epochs=1)


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


def test_a_mask_is_refused_in_later_batches_too_but_not_an_empty_one(setup: Setup) -> None:
    x, digit, amount = setup.data[0]
    setup.but(data=[[x, digit, np.ma.masked_array(amount)]] * 2).trains()
    later = setup.but(data=[[x, digit, amount], [x, digit, np.ma.masked_less(amount, amount.max())]])
    with pytest.raises(DataError, match=r"epoch 1, batch 2: .*\n?.*some of it masked"):
        later.fit()


LACKING = (
    'if samples have no "amount", fill it with NaN and declare LabelSpec("amount", missing="nan"), give a '
    "dict with a loader for each task, or, to evaluate without it, evaluate=TaskSpec(...)"
)


@pytest.mark.parametrize("as_dict", [False, True])
def test_validation_data_without_a_label_says_what_works(setup: Setup, as_dict: bool) -> None:
    x, digit, amount = setup.data[0]
    lacking = [{"x": x, "digit": digit}] if as_dict else [(x, digit)]
    setup.but(val_data=lacking).refused(DataError, "val_data: the batch has ", LACKING)
    fill = [(x, digit, np.full_like(amount, np.nan))]
    setup.but(val_data=fill, labels=["digit", LabelSpec("amount", missing="nan")]).trains()
    setup.but(val_data={"digit": lacking}).trains()
    evaluate = TaskSpec(
        inputs=["x"], outputs=["digit", ...], labels=["digit"], metrics={"accuracy": mx.metric.Accuracy()}
    )
    setup.but(val_data=lacking, evaluate=evaluate).trains()
