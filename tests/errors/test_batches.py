"""Batches: number, names, kinds and sizes of their slots; and the loaders that yield them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from multifit import DataError, LabelSpec, Shards, TaskSpec

import mxnet as mx  # isort: skip
from mxnet import gluon  # isort: skip

from .setups import Setup, fault, stops

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


def test_what_a_batch_fn_returns(setup: Setup) -> None:
    nothing, text = setup.but(batch_fn=lambda batch: None), "batch_fn returns None; let it return the batch"
    nothing.refused(DataError, text)
    part = setup.but(batch_fn=lambda batch: {"x": 1})
    part.refused(DataError, 'the batch has no "digit"; its keys are "x"')
    setup.but(batch_fn=lambda batch: dict(zip(["x", "digit", "amount"], batch))).trains()


# fmt: off
LATER: dict[str, tuple[Callable[..., Any], str]] = {
    "slot missing": (lambda x, d, a: [x, d], "the batch has 2 arrays"),
    "a label is None": (lambda x, d, a: [x, None, a], '"digit" is None, but was (8,) float32 in the first'),
    "more axes": (lambda x, d, a: [x, x, a], '"digit" is (8, 6) float32, but was (8,) float32 in the first'),
    "integers": (lambda x, d, a: [x.astype("int32"), d, a], '"x" is (8, 6) int32, but was (8, 6) float32'),
    "masked": (lambda x, d, a: [x, d, np.ma.masked_less(a, a.max())], "some of it masked"),
}
# fmt: on


@pytest.mark.parametrize(("change", "text"), LATER.values(), ids=LATER)
def test_later_batches_have_the_form_of_the_first(setup: Setup, change: Any, text: str) -> None:
    wrong = change(*setup.data[0])
    arrays_of_mxnet = [a if a is None else mx.nd.array(a, dtype=a.dtype) for a in wrong]
    for batch in (wrong, arrays_of_mxnet) if text != "some of it masked" else (wrong,):
        estimator = setup.make()
        with pytest.raises(DataError, match="epoch 1, batch 2: ") as raised:
            estimator.fit([setup.data[0], batch], epochs=1)
        assert text in str(raised.value) and estimator.state.step == 1
    estimator.fit(setup.data, epochs=1)


def test_a_missing_label_stays_missing(setup: Setup) -> None:
    x, digit, amount = setup.data[0]
    faulty = setup.but(
        labels=["digit", "amount", "name"], unused=["name"],
        data=[(x, digit, amount, None), (x, digit, amount, digit)],
    )  # fmt: skip
    stops(faulty.fit, DataError, '"name" is (8,) float32, but was None in the first batch')


# what is no mistake: dtypes that MXNet lacks, axes of length 1, an empty mask
ACCEPTED: dict[str, Callable[..., Any]] = {
    **{dtype: lambda x, d, a, dtype=dtype: [[x, (d > 0).astype(dtype), a]]
       for dtype in ("bool", "int16", "uint64")},
    "axes of length 1": lambda x, d, a: [[x, d, a], [x, d[:, None], a[:, 0]]],
    "an empty mask": lambda x, d, a: [[x, d, np.ma.masked_array(a)]] * 2,
}  # fmt: skip


@pytest.mark.parametrize("case", ACCEPTED)
def test_what_is_accepted(setup: Setup, case: str) -> None:
    setup.but(data=ACCEPTED[case](*setup.data[0])).trains()


def test_predicting_takes_the_inputs_alone_or_everything(setup: Setup) -> None:
    estimator = setup.make()
    x, digit, _ = setup.data[0]
    with pytest.raises(DataError, match=r'declared 3 slots: .* \(or the inputs alone: "x"\)'):
        estimator.predict((x, digit))
    with pytest.raises(DataError, match='the batch has no "x"; its keys are "y"'):
        estimator.predict({"y": x})
    assert estimator.predict({"x": x})["digit"].shape == (8, 3)


LACKING = (
    'if samples have no "amount", fill it with NaN and declare LabelSpec("amount", missing="nan"), give a '
    "dict with a loader for each task, or, to evaluate without it, evaluate=TaskSpec(...)"
)


def test_validation_data_without_a_label_says_what_works(setup: Setup) -> None:
    x, digit, amount = setup.data[0]
    lacking = [(x, digit)]
    for batches in ([{"x": x, "digit": digit}], lacking):
        setup.but(val_data=batches).refused(DataError, "1. val_data: the batch has ", LACKING)
        setup.but(val_data={"digit": batches}).trains()
    fill = [(x, digit, np.full_like(amount, np.nan))]
    setup.but(val_data=fill, labels=["digit", LabelSpec("amount", missing="nan")]).trains()
    evaluate = TaskSpec(
        inputs=["x"], outputs=["digit", ...], labels=["digit"], metrics={"accuracy": mx.metric.Accuracy()}
    )
    setup.but(val_data=lacking, evaluate=evaluate).trains()


# ---- loaders -----------------------------------------------------------------------------------------------


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


SINGLE = (
    "is a data set of single items ({}); give a DataLoader of it, "
    "or, if the items are batches, [data[i] for i in range(len(data))]"
)
EMPTY = "is empty: it yields no batch; give it at least one"
# fmt: off
NO_LOADERS = {
    "samples": (gluon.data.ArrayDataset(np.ones((8, 6)), np.zeros(8)), SINGLE.format("ArrayDataset")),
    "what is only indexed": (Indexed(), SINGLE.format("Indexed")),
    "NDArray": (mx.nd.ones((8, 6)), "is one array, (8, 6) float32, not a loader of batches; give multifit."),
    "number": (3, "is 3, which yields no batches; give a DataLoader, a DataIter or a list of batches"),
    "dict of what is empty": ({"digit": []}, f'["digit"] {EMPTY}'),
    "empty list": ([], f'{EMPTY} (check last_batch="discard")'),
}
# fmt: on


@pytest.mark.parametrize(("loader", "text"), NO_LOADERS.values(), ids=NO_LOADERS)
def test_what_is_not_a_loader(setup: Setup, loader: Any, text: str) -> None:
    text = text if text[0] == "[" else f" {text}"
    setup.but(data=loader).refused(DataError, f"1. train_data{text}")
    setup.but(val_data=loader).refused(DataError, f"1. val_data{text}")
    setup.but(data=loader).refused(DataError, text, way="check")


@pytest.mark.parametrize("once", [iter, Once], ids=["list_iterator", "iterator"])
def test_what_can_be_read_only_once(setup: Setup, once: Any) -> None:
    faulty = setup.but(data=lambda: once(setup.data), epochs=2)
    text = "which can be read only once, but every epoch needs it; give a DataLoader or a list"
    faulty.refused(DataError, "train_data is a ", text)
    validation = setup.but(val_data=lambda: once(setup.data), epochs=2)
    validation.refused(DataError, "val_data is a ", text)
    faulty.but(epochs=1).trains()


def test_what_yields_no_batch(setup: Setup) -> None:
    setup.but(data=lambda: iter(())).refused(DataError, EMPTY[:28])
    for way in ("fit", "check"):
        setup.but(val_data=lambda: iter(())).refused(DataError, "val_data is empty", way=way)
    for use in (setup.make().evaluate, setup.make().predict):
        stops(partial(use, []), DataError, "data is empty: it yields no batch")


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
