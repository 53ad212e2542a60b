"""BatchSplitter: arrays are named, cast, split and placed, also for batches with a known layout."""

from typing import Any

import numpy as np
import pytest

from multifit import LabelSpec, LossSpec, TaskSpec
from multifit.errors import DataError
from multifit.gluon.data.arrays import signature_of
from multifit.gluon.data.batch import Batch
from multifit.gluon.data.splitter import BatchSplitter

import mxnet as mx  # isort: skip
from mxnet import gluon, nd  # isort: skip


def make_splitter(labels: Any = ("y",), contexts: int = 1, **options: Any) -> BatchSplitter:
    spec = TaskSpec(
        inputs=["x"], outputs=["o"], labels=labels, losses={"l": LossSpec(gluon.loss.L2Loss(), "o", "y")}
    )
    return BatchSplitter(spec, [mx.cpu(i) for i in range(contexts)], print, **options)


def raw(size: int, dtype: str = "float32") -> tuple[Any, Any]:
    return nd.array(np.random.normal(size=(size, 3))), nd.array(np.arange(size).reshape(size, 1), dtype=dtype)


def check_batch(batch: Batch, x: Any, y: Any) -> None:
    assert list(batch.slots[0]) == ["x", "y"] and batch.samples == len(x) and batch.sizes == [len(x)]
    np.testing.assert_array_equal(batch.slots[0]["x"].asnumpy(), x.asnumpy())
    np.testing.assert_array_equal(batch.slots[0]["y"].asnumpy(), y.asnumpy())
    assert batch.signature in (None, signature_of([x, y]))


SHAPES = [(4, "int32"), (4, "int32"), (3, "int32"), (4, "float32"), (3, "int32"), (4, "float32")]


@pytest.mark.parametrize("kind", [tuple, list])
def test_batches_of_several_shapes_and_dtypes(kind: type) -> None:
    splitter = make_splitter()
    for size, dtype in SHAPES:
        x, y = raw(size, dtype)
        batch = splitter.split(kind([x, y]))
        check_batch(batch, x, y)
        assert batch.slots[0]["y"].dtype == np.dtype(dtype)
    # taken from the layout of an earlier batch
    assert batch.signature == (((4, 3), np.float32), ((4, 1), np.float32))


def test_an_array_from_elsewhere_is_placed() -> None:
    splitter = make_splitter()
    splitter.split(raw(4))
    x, y = raw(4)
    batch = splitter.split((x.as_in_context(mx.cpu(1)), y))
    assert batch.signature and batch.slots[0]["x"].context == mx.cpu(0)
    check_batch(batch, x, y)


def test_one_array_in_two_slots() -> None:
    splitter = make_splitter()
    for _ in range(3):
        x = nd.array(np.random.normal(size=(4, 3)))
        check_batch(splitter.split((x, x)), x, x)


def halve(slots: Any) -> Any:
    return {**slots, "y": slots["y"].astype("float16") / 2}


@pytest.mark.parametrize(
    ("options", "dtype", "expected"),
    [
        ({}, "float64", ([4], "float32")),  # cast
        ({"labels": [LabelSpec("y", dtype="int32")]}, "float32", ([4], "int32")),
        ({}, "numpy", ([4], "float32")),
        ({"contexts": 2}, "float32", ([2, 2], "float32")),
        ({"change": halve}, "float32", ([4], "float16")),
    ],
    ids=["cast", "declared", "numpy", "devices", "changed"],
)
def test_casting_splitting_and_changing_apply_to_every_batch(options: Any, dtype: str, expected: Any) -> None:
    splitter = make_splitter(**options)
    for _ in range(3):
        arrays = raw(4) if dtype == "numpy" else raw(4, dtype)
        batch = splitter.split(tuple(a.asnumpy() for a in arrays) if dtype == "numpy" else arrays)
        assert batch.signature is None
        labels = [slots["y"] for slots in batch.slots]
        assert ([len(y) for y in labels], str(np.dtype(labels[0].dtype))) == expected


# the dtype of the arrays, that of the declaration or of the net, and what stands where the label is missing
SOUGHT: dict[str, tuple[str, dict[str, Any], Any]] = {
    "NaN has no place in whole numbers": ("float32", {"dtype": "int32"}, "nan"),
    "nor in small ones": ("float64", {"dtype": "uint8"}, "nan"),
    "nor has -1 in some": ("float32", {"dtype": "uint8"}, -1),
    "whole numbers, of a dtype that MXNet lacks": ("int16", {"dtype": "uint8"}, -1),
    "more digits": ("float16", {"dtype": "float32"}, -999.9),
    "those of the net": ("float32", {"real": "float64"}, -999.9),
    "fewer digits": ("float64", {"dtype": "float16"}, -999.9),
    "as many": ("float32", {"dtype": "float32"}, -999.9),
}


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize(
    ("case", "kind"),
    [*((case, "numpy") for case in SOUGHT), *((case, "NDArrays") for case in SOUGHT if "lacks" not in case)],
)
def test_what_is_missing_is_found_before_labels_are_cast(case: str, kind: str, devices: int) -> None:
    dtype, options, missing = SOUGHT[case]
    label = LabelSpec("y", dtype=options.get("dtype"), missing=missing)
    splitter = make_splitter([label], devices, real=options.get("real", "float32"))
    for number in range(3):
        y = np.array([3, np.nan if missing == "nan" else missing, 1, 200][number:]).astype(dtype)
        batch = splitter.split((np.ones((len(y), 3)), nd.array(y, dtype=dtype) if kind == "NDArrays" else y))
        known = np.array([3, 0, 1, 200][number:])
        present = [slots["present.y"].asnumpy() for slots in batch.slots]
        np.testing.assert_array_equal(np.concatenate(present), known > 0)
        values = [slots["y"].asnumpy() for slots in batch.slots]
        np.testing.assert_array_equal(np.concatenate(values), known)
        assert {value.dtype.name for value in values} == {*options.values()}


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32", "int64", "float16", "float64"])
def test_a_mask_says_what_is_missing_of_any_dtype(dtype: str) -> None:
    losses = {"l": LossSpec(mx.gluon.loss.L2Loss(), "o", "y")}
    labels = [LabelSpec("y", missing="m"), "m"]
    spec = TaskSpec(outputs="o", labels=labels, losses=losses, inputs=["x"], unused=["m"])
    y, mask = np.array([3, 2, 1], dtype), np.array([1, 0, 1], "float32")
    batch = BatchSplitter(spec, [mx.cpu()], print).split((np.ones((3, 2)), y, mask))
    assert batch.slots[0]["present.y"].asnumpy().tolist() == [1, 0, 1]
    assert batch.slots[0]["y"].asnumpy().tolist() == [3, 0, 1]


WHOLE = ["uint8", "int8", "int32", "int64"]


@pytest.mark.parametrize("missing", [-999, -1, 0, 0.5, 25, 256, 2.0**40])
@pytest.mark.parametrize("dtype", [*WHOLE, "float16", "float32"])
def test_a_number_is_missing_where_the_label_is_that_number(dtype: str, missing: float) -> None:
    numbers = np.array([0, 1, 25, 127], dtype)
    batch = make_splitter([LabelSpec("y", missing=missing)]).split((np.ones((4, 3)), numbers))
    np.testing.assert_array_equal(batch.slots[0]["present.y"].asnumpy(), numbers.astype("float64") != missing)


@pytest.mark.parametrize("missing", ["nan", -999, 0.5, 256])
def test_none_for_a_label_of_a_dtype_that_cannot_say_so(missing: Any) -> None:
    splitter = make_splitter([LabelSpec("y", missing=missing)])
    x, y = np.ones((4, 3)), np.arange(4)
    splitter.split((x, y.astype("float32")))
    splitter.split((x, None))
    splitter.split((x, y.astype("uint8")))
    with pytest.raises(DataError, match=r'the label "y" is uint8, which has no (NaN|-999|0.5|256); give fl'):
        splitter.split((x, None))


def test_an_invalid_batch_is_an_error_at_any_time() -> None:
    splitter = make_splitter()
    splitter.split(raw(4))
    x, y = raw(4)
    for bad in [(x,), (x, y, y), (x, "y"), (x, y[:2]), ()]:
        with pytest.raises(DataError):
            splitter.split(bad)
    check_batch(splitter.split((x, y)), x, y)
