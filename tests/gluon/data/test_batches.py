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


def joined(batch: Batch, name: str) -> np.ndarray:
    """Return a slot of all devices."""
    slots: list[Any] = list(batch.slots)
    return np.concatenate([each[name].asnumpy() for each in slots])


def halve(batch: Batch) -> None:
    for _, slots, _ in batch.devices():
        slots["y"] = slots["y"].astype("float16") / 2  # type: ignore[union-attr]


FORMS = {
    "a tuple": lambda x, y: (x, y),
    "a list": lambda x, y: [x, y],
    "by name": lambda x, y: {"y": y, "x": x},
    "NumPy": lambda x, y: (x.asnumpy(), y.asnumpy()),
    "both": lambda x, y: (x.asnumpy(), y),
    "elsewhere": lambda x, y: (x.as_in_context(CONTEXTS[1]), y),
}
# options, the labels' dtype in the batch and on the device, and how many devices have samples
OPTIONS: dict[str, tuple[dict[str, Any], str, str, int]] = {
    "as they are": ({}, "int32", "int32", 1),
    "cast": ({}, "float64", "float32", 1),
    "declared": ({"labels": [LabelSpec("y", dtype="int32")]}, "float32", "int32", 1),
    "two devices": ({"devices": 2}, "float32", "float32", 2),
    "changed": ({"changes": [halve]}, "float32", "float16", 1),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", OPTIONS)
def test_arrays_are_named_cast_split_and_changed(form: str, case: str) -> None:
    """Those of every batch: the second of a kind has the layout of an earlier one."""
    options, given, dtype, devices = OPTIONS[case]
    splitter = make_splitter(**options)
    for size in (4, 4, 3, 4, 3):
        x = nd.array(np.random.normal(size=(size, 3)))
        y = nd.array(np.arange(size).reshape(size, 1), dtype=given)
        batch = splitter.split(FORMS[form](x, y))
        np.testing.assert_array_equal(joined(batch, "x"), x.asnumpy())
        np.testing.assert_array_equal(joined(batch, "y"), y.asnumpy() / (2 if case == "changed" else 1))
        assert len(batch.slots) == devices and sum(batch.sizes) == batch.total == batch.samples == size
        for slots, context in zip(batch.slots, CONTEXTS):
            placed: dict[str, Any] = dict(slots)
            assert [*placed] == ["x", "y"] and {array.context for array in placed.values()} == {context}
            assert [np.dtype(array.dtype).name for array in placed.values()] == ["float32", dtype]
            assert batch.signature in (None, tuple((array.shape, array.dtype) for array in placed.values()))
    assert (batch.signature is None) == (case in ("two devices", "changed"))


def test_one_array_in_two_slots_and_invalid_batches() -> None:
    splitter, x = make_splitter(), nd.ones((4, 3))
    for y in (x, x, x + 1):
        for bad in [(x,), (x, y, y), (x, "y"), (x, y[:2]), (), {"x": x, "z": y}]:
            with pytest.raises(DataError):
                splitter.split(bad)
        batch = splitter.split((x, y))
        assert (joined(batch, "y") == y.asnumpy()).all() and (joined(batch, "x") == 1).all()


# the dtype of the arrays, that of the declaration or of the net, and what stands where the label is missing
SOUGHT: dict[str, tuple[str, dict[str, Any], Any]] = {
    "NaN has no place in whole numbers": ("float32", {"dtype": "int32"}, "nan"),
    "nor in small ones": ("float64", {"dtype": "uint8"}, "nan"),
    "nor has -1 in some": ("float32", {"dtype": "uint8"}, -1),
    "whole numbers, of a dtype that MXNet lacks": ("int16", {"dtype": "uint8"}, -1),
    "more digits": ("float16", {"dtype": "float32"}, -999.9),
    "those of the net": ("float32", {"real": "float64"}, -999.9),
    "fewer digits": ("float64", {"dtype": "float16"}, -999.9),
}


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("case", SOUGHT)
def test_what_is_missing_is_found_before_labels_are_cast(case: str, devices: int) -> None:
    dtype, options, missing = SOUGHT[case]
    label = LabelSpec("y", dtype=options.get("dtype"), missing=missing)
    splitter = make_splitter([label], devices, options.get("real", "float32"))
    for number in (0, 1, 2, 0):
        y = np.array([3, np.nan if missing == "nan" else missing, 1, 200][number:]).astype(dtype)
        known = np.array([3, 0, 1, 200][number:])
        for array in (y, y if dtype == "int16" else nd.array(y, dtype=dtype)):
            batch = splitter.split((np.ones((len(y), 3)), array))
            np.testing.assert_array_equal(joined(batch, "present.y"), known > 0)
            np.testing.assert_array_equal(joined(batch, "y"), known)
            assert {joined(batch, "y").dtype.name} == {*options.values()}


@pytest.mark.parametrize("missing", ["nan", -999, 0.5, 256])
def test_none_is_like_the_label_of_the_batch_before(missing: Any) -> None:
    splitter = make_splitter([LabelSpec("y", missing=missing)])
    x, y = np.ones((4, 3)), np.arange(4)
    for _ in range(2):  # the second time, batches have known layouts
        splitter.split((x, y.astype("float32")))
        assert joined(splitter.split((x, None)), "present.y").tolist() == [0] * 4
        splitter.split((x, y.astype("uint8")))
        with pytest.raises(DataError, match='"y" is uint8, which has no (NaN|-999|0.5|256); give fl'):
            splitter.split((x, None))
