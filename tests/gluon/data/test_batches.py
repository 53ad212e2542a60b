"""BatchSplitter: arrays are named, cast, split and placed, also for batches with a known layout."""

from typing import Any

import numpy as np
import pytest

from multifit import LabelSpec, LossSpec, TaskSpec
from multifit.gluon.data.batch import Batch
from multifit.gluon.data.splitter import BatchSplitter
from multifit.utils.errors import DataError

import mxnet as mx  # isort: skip
from mxnet import gluon, nd  # isort: skip

CONTEXTS = [mx.cpu(0), mx.cpu(1)]
LOSSES = {"l": LossSpec(gluon.loss.L2Loss(), "o", "y")}


def make_splitter(
    labels: Any = ("y",), devices: int = 1, real: str = "float32", **options: Any
) -> BatchSplitter:
    unused = labels[1:]
    spec = TaskSpec(inputs=["x"], outputs=["o"], labels=labels, losses=LOSSES, unused=unused)
    return BatchSplitter(spec, CONTEXTS[:devices], real, print, **options)


def raw(size: int, dtype: str = "float32") -> tuple[Any, Any]:
    return nd.array(np.random.normal(size=(size, 3))), nd.array(np.arange(size).reshape(size, 1), dtype=dtype)


def check_batch(batch: Batch, x: Any, y: Any, dtypes: Any = None) -> None:
    assert [*batch.slots[0]] == ["x", "y"] and batch.samples == sum(batch.sizes) == batch.total == len(x)
    for name, expected in (("x", x), ("y", y)):
        arrays = [slots[name].asnumpy() for slots in batch.slots]  # type: ignore[union-attr]
        np.testing.assert_array_equal(np.concatenate(arrays), expected.asnumpy())
    placed = [(array.shape, array.dtype) for array in batch.slots[0].values()]  # type: ignore[union-attr]
    assert batch.signature in (None, tuple(placed))
    assert dtypes is None or [np.dtype(dtype).name for _, dtype in placed] == dtypes


AS = {
    "a tuple": lambda x, y: (x, y),
    "a list": lambda x, y: [x, y],
    "by name": lambda x, y: {"y": y, "x": x},
    "NumPy": lambda x, y: (x.asnumpy(), y.asnumpy()),
    "both": lambda x, y: (x.asnumpy(), y),
    "elsewhere": lambda x, y: (x.as_in_context(CONTEXTS[1]), y),
}


@pytest.mark.parametrize("form", AS)
def test_batches_of_several_shapes_and_dtypes(form: str) -> None:
    splitter = make_splitter()
    for size, dtype in [(4, "int32"), (4, "int32"), (3, "int32"), (4, "float32"), (3, "int32")] * 2:
        x, y = raw(size, dtype)
        batch = splitter.split(AS[form](x, y))
        check_batch(batch, x, y, ["float32", dtype])
        assert all(array.context == CONTEXTS[0] for array in batch.slots[0].values())  # type: ignore[union-attr]
    assert batch.signature  # from the layout of an earlier batch


def test_one_array_in_two_slots() -> None:
    splitter = make_splitter()
    for _ in range(3):
        x = nd.array(np.random.normal(size=(4, 3)))
        check_batch(splitter.split((x, x)), x, x)
    check_batch(splitter.split((x, x + 1)), x, x + 1)


def halve(batch: Batch) -> None:
    for _, slots, _ in batch.devices():
        slots["y"] = slots["y"].astype("float16") / 2  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("options", "dtype", "expected"),
    [
        ({}, "float64", ([4], "float32")),  # cast
        ({"labels": [LabelSpec("y", dtype="int32")]}, "float32", ([4], "int32")),
        ({"devices": 2}, "float32", ([2, 2], "float32")),
        ({"changes": [halve]}, "float32", ([4], "float16")),
    ],
    ids=["cast", "declared", "devices", "changed"],
)
@pytest.mark.parametrize("form", ["a tuple", "by name", "NumPy"])
def test_casting_splitting_and_changing_apply_to_every_batch(
    form: str, options: Any, dtype: str, expected: Any
) -> None:
    splitter = make_splitter(**options)
    for _ in range(3):
        x, y = raw(4, dtype)
        batch = splitter.split(AS[form](x, y))
        labels: list[Any] = [slots["y"] for slots in batch.slots]
        assert ([len(each) for each in labels], np.dtype(labels[0].dtype).name) == expected
        check_batch(batch, x, y / 2 if "changes" in options else y)


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
    splitter = make_splitter([label], devices, options.get("real", "float32"))
    for number in (0, 1, 2, 0):
        y = np.array([3, np.nan if missing == "nan" else missing, 1, 200][number:]).astype(dtype)
        batch = splitter.split((np.ones((len(y), 3)), nd.array(y, dtype=dtype) if kind == "NDArrays" else y))
        known = np.array([3, 0, 1, 200][number:])
        present = [slots["present.y"].asnumpy() for slots in batch.slots]  # type: ignore[union-attr]
        np.testing.assert_array_equal(np.concatenate(present), known > 0)
        values = [slots["y"].asnumpy() for slots in batch.slots]  # type: ignore[union-attr]
        np.testing.assert_array_equal(np.concatenate(values), known)
        assert {value.dtype.name for value in values} == {*options.values()}


@pytest.mark.parametrize("missing", [-999, -1, 0, 0.5, 25, 256, 2.0**40, "m"])
@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32", "int64", "float16", "float32", "float64"])
def test_a_label_is_missing_where_it_is_a_number_or_a_mask_says_so(dtype: str, missing: Any) -> None:
    y, mask = np.array([0, 1, 25, 127], dtype), np.array([1, 0, 1, 0], "float32")
    by_mask = missing == "m"
    splitter = make_splitter([LabelSpec("y", missing=missing), *(["m"] if by_mask else [])])
    slots: Any = splitter.split((np.ones((4, 3)), y, *([mask] if by_mask else []))).slots[0]
    present = mask if by_mask else y.astype("float64") != missing
    np.testing.assert_array_equal(slots["present.y"].asnumpy(), present)
    np.testing.assert_array_equal(slots["y"].asnumpy(), y * present)


@pytest.mark.parametrize("missing", ["nan", -999, 0.5, 256])
def test_none_is_like_the_label_of_the_batch_before(missing: Any) -> None:
    splitter = make_splitter([LabelSpec("y", missing=missing)])
    x, y = np.ones((4, 3)), np.arange(4)
    for _ in range(2):  # the second time, batches have known layouts
        splitter.split((x, y.astype("float32")))
        slots: Any = splitter.split((x, None)).slots[0]
        assert slots["present.y"].asnumpy().tolist() == [0] * 4
        splitter.split((x, y.astype("uint8")))
        with pytest.raises(
            DataError, match='the label "y" is uint8, which has no (NaN|-999|0.5|256); give fl'
        ):
            splitter.split((x, None))


def test_an_invalid_batch_is_an_error_at_any_time() -> None:
    splitter = make_splitter()
    splitter.split(raw(4))
    x, y = raw(4)
    for bad in [(x,), (x, y, y), (x, "y"), (x, y[:2]), (), {"x": x, "z": y}]:
        with pytest.raises(DataError):
            splitter.split(bad)
    check_batch(splitter.split((x, y)), x, y)
