"""Batches: number, names, kinds and sizes of their slots."""

from typing import Any

import numpy as np
import pytest

from multifit import DataError, LabelSpec, Shards, TaskSpec

import mxnet as mx  # isort: skip

from .setups import Setup, fault

STRINGS = np.array(["a", "b"] * 4)


# fmt: off
FAULTS = [
    fault("slot missing", lambda x, d, a: [x, d],
        "the batch has 2 arrays: (8, 6) float32, (8,) float32; declared 3 slots: ",
        '"x", "digit", "amount"; name every array in inputs= and labels= (batch= gives the'),
    fault("slot more", lambda x, d, a: [x, d, a, a], "the batch has 4 arrays", "declared 3 slots"),
    fault("split", lambda x, d, a: [[part[:4], part[4:]] for part in (x, d, a)], "the batch has 6 arrays",
        "; if these are the parts of several devices, declare batch_fn=Shards"),
    fault("one array", lambda x, d, a: x, "the batch has 1 array: (8, 6) float32; declared 3 slots",
        "if this array is the whole data, give multifit.batches(data, label, batch_size=32)"),
    fault("string", lambda x, d, a: "abc", "the batch has 1 array: str",
        "strings are not arrays: encode them"),
    fault("list of numbers", lambda x, d, a: [x, d.tolist(), a], "the batch has 10 arrays",
        "a list of numbers counts as one array per number: make it one array"),
    fault("strings", lambda x, d, a: [x, STRINGS, a],
        'the slot "digit" is (8,) string, which a net cannot take; valid are floats, integers and bool'),
    fault("objects", lambda x, d, a: [x, np.array([{"a": 1}] * 8, dtype=object), a],
        'the slot "digit" is (8,) object, which a net cannot take'),
    fault("masked", lambda x, d, a: [x, d, np.ma.masked_less(a, a.max())],
        'the slot "amount" is (8, 1) float32, some of it masked',
        'fill it, as with array.filled(-1), and declare a label as LabelSpec("amount", missing=-1)'),
    fault("label is None", lambda x, d, a: [x, None, a],
        'the slot "digit" is None, but losses or metrics take it; the batch must hold an array',
        'if samples may lack this label, declare LabelSpec("digit", missing=...)'),
    fault("label is a scalar", lambda x, d, a: [x, np.float32(1), a],
        'the slot "digit" is () float32, which has no batch axis 0; a batch holds one row for each sample'),
    fault("samples differ", lambda x, d, a: [x, d[:7], a],
        "the slots hold different numbers of samples along axis 0: x (8, 6) float32, digit (7,) float32, "
        "amount (8, 1) float32; make them equal"),
    fault("no samples", lambda x, d, a: [x[:0], d[:0], a[:0]], "the batch holds no sample"),
    fault("key missing", lambda x, d, a: {"x": x, "digt": d, "amount": a}, "1 problem found:",
        'the batch has no "digit" (did you mean "digt"?); its keys are "x", "digt", "amount"'),
    fault("key more", lambda x, d, a: {"x": x, "digit": d, "amount": a, "index": d},
        'the batch also has "index", which is not declared; declared are "x", "digit", "amount"',
        "declare it as a label, or name it in batch= and in unused="),
    fault("a wrong shard", lambda x, d, a: Shards([(x, d)]), "the batch has 2 arrays"),
    fault("more shards than devices", lambda x, d, a: Shards([(x, d, a), (x, d, a)]),
        "the batch is split into 2 parts for 1 device; give one part for each, or fewer"),
]
# fmt: on


@pytest.mark.parametrize(("batch", "texts"), FAULTS)
def test_a_wrong_batch_is_an_error(setup: Setup, batch: Any, texts: tuple) -> None:
    setup.but(data=[batch(*setup.data[0])]).refused(DataError, *texts)


@pytest.mark.parametrize("dtype", ["bool", "int16", "uint64"])
def test_dtypes_that_mxnet_lacks_are_cast(setup: Setup, dtype: str) -> None:
    x, digit, amount = setup.data[0]
    setup.but(data=[[x, (digit > 0).astype(dtype), amount]]).trains()


def test_what_a_batch_fn_returns(setup: Setup) -> None:
    setup.but(batch_fn=lambda batch: None).refused(
        DataError, "batch_fn returns None; let it return the batch"
    )
    setup.but(batch_fn=lambda batch: {"x": 1}).refused(
        DataError, 'the batch has no "digit"; its keys are "x"'
    )
    setup.but(batch_fn=lambda batch: dict(zip(["x", "digit", "amount"], batch))).trains()


def test_a_wrong_batch_later_stops_the_fit_with_the_same_message(setup: Setup) -> None:
    estimator = setup.make()
    with pytest.raises(DataError, match="the batch has 2 arrays"):
        estimator.fit([setup.data[0], setup.data[0][:2]], epochs=1)
    assert estimator.state.step == 1
    estimator.fit(setup.data, epochs=1)


LATER = {
    "a label is None": (lambda x, d, a: [x, None, a], '"digit" is None, but was (8,) float32 in the first'),
    "more axes": (lambda x, d, a: [x, x, a], '"digit" is (8, 6) float32, but was (8,) float32 in the first'),
    "integers": (lambda x, d, a: [x.astype("int32"), d, a], '"x" is (8, 6) int32, but was (8, 6) float32'),
}  # fmt: skip


@pytest.mark.parametrize(("later", "text"), LATER.values(), ids=LATER)
def test_later_batches_have_the_form_of_the_first(setup: Setup, later: Any, text: str) -> None:
    wrong = later(*setup.data[0])
    for batch in (wrong, [a if a is None else mx.nd.array(a, dtype=a.dtype) for a in wrong]):
        estimator = setup.make()
        with pytest.raises(DataError) as raised:
            estimator.fit([setup.data[0], batch], epochs=1)
        assert text in str(raised.value) and estimator.state.step == 1


def test_later_labels_may_have_axes_of_length_1(setup: Setup) -> None:
    x, digit, amount = setup.data[0]
    setup.but(data=[[x, digit, amount], [x, digit[:, None], amount[:, 0]]]).trains()


def test_a_missing_label_stays_missing(setup: Setup) -> None:
    x, digit, amount = setup.data[0]
    estimator = setup.but(labels=["digit", "amount", "name"], unused=["name"]).make()
    with pytest.raises(DataError, match=r'"name" is \(8,\) float32, but was None in the first batch'):
        estimator.fit([(x, digit, amount, None), (x, digit, amount, digit)], epochs=1)


def test_predicting_takes_the_inputs_alone_or_everything(setup: Setup) -> None:
    estimator = setup.make()
    x, digit, _ = setup.data[0]
    with pytest.raises(DataError, match=r'declared 3 slots: .* \(or the inputs alone: "x"\)'):
        estimator.predict((x, digit))
    with pytest.raises(DataError, match='the batch has no "x"; its keys are "y"'):
        estimator.predict({"y": x})
    assert estimator.predict({"x": x})["digit"].shape == (8, 3)


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


def test_validation_data_without_a_label_says_what_works(setup: Setup) -> None:
    x, digit, amount = setup.data[0]
    lacking = [(x, digit)]
    for batches in ([{"x": x, "digit": digit}], lacking):
        setup.but(val_data=batches).refused(DataError, "1. val_data: the batch has ", LACKING)
    fill = [(x, digit, np.full_like(amount, np.nan))]
    setup.but(val_data=fill, labels=["digit", LabelSpec("amount", missing="nan")]).trains()
    for batches in ([{"x": x, "digit": digit}], lacking):
        setup.but(val_data={"digit": batches}).trains()
    evaluate = TaskSpec(
        inputs=["x"], outputs=["digit", ...], labels=["digit"], metrics={"accuracy": mx.metric.Accuracy()}
    )
    setup.but(val_data=lacking, evaluate=evaluate).trains()
