"""A batch like one that was looked at before is recognised: the same arrays by the same names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from multifit import LabelSpec, LossSpec, TaskSpec
from multifit.errors import DataError
from multifit.gluon.data.batch_splitter import BatchSplitter
from multifit.gluon.data.batches import Batch

import mxnet as mx  # isort: skip
from mxnet import gluon, nd  # isort: skip


def feed(labels: Any = ("y",), contexts: int = 1, **options: Any) -> BatchSplitter:
    spec = TaskSpec(
        inputs=["x"], outputs=["o"], labels=labels, losses={"l": LossSpec(gluon.loss.L2Loss(), "o", "y")}
    )
    return BatchSplitter(spec, [mx.cpu(i) for i in range(contexts)], print, **options)


def raw(size: int, dtype: str = "float32") -> tuple[Any, Any]:
    return nd.array(np.random.normal(size=(size, 3))), nd.array(np.arange(size).reshape(size, 1), dtype=dtype)


def same(batch: Batch, x: Any, y: Any) -> None:
    assert list(batch.slots[0]) == ["x", "y"] and batch.samples == len(x) and batch.sizes == [len(x)]
    np.testing.assert_array_equal(batch.slots[0]["x"].asnumpy(), x.asnumpy())
    np.testing.assert_array_equal(batch.slots[0]["y"].asnumpy(), y.asnumpy())
    assert batch.shapes in (None, (x.shape, y.shape))


@pytest.mark.parametrize("kind", [tuple, list])
def test_batches_of_several_forms(kind: type) -> None:
    ours = feed()
    for size, dtype in [
        (4, "float32"),
        (4, "float32"),
        (3, "float32"),
        (4, "int32"),
        (3, "float32"),
        (4, "int32"),
    ]:
        x, y = raw(size, dtype)
        batch = ours.split(kind([x, y]))
        same(batch, x, y)
        assert batch.slots[0]["y"].dtype == np.dtype(dtype)
    assert batch.shapes == ((4, 3), (4, 1))  # which is what recognising it spares


def test_an_array_from_elsewhere_is_placed() -> None:
    ours = feed()
    ours.split(raw(4))
    x, y = raw(4)
    batch = ours.split((x.as_in_context(mx.cpu(1)), y))
    assert batch.shapes and batch.slots[0]["x"].context == mx.cpu(0)
    same(batch, x, y)


def test_one_array_in_two_slots_is_no_riddle() -> None:
    ours = feed()
    for _ in range(3):
        x = nd.array(np.random.normal(size=(4, 3)))
        same(ours.split((x, x)), x, x)


@pytest.mark.parametrize("reason", ["cast", "declared", "numpy", "devices", "changed"])
def test_what_has_to_be_done_is_done_to_every_batch(reason: str) -> None:
    options: dict[str, Any] = {}
    if reason == "devices":
        options["contexts"] = 2
    if reason == "changed":
        options["change"] = lambda slots: {**slots, "x": slots["x"][:2], "y": slots["y"][:2]}
    ours = feed([LabelSpec("y", dtype="int32")] if reason == "declared" else ("y",), **options)
    for _ in range(3):
        x, y = raw(4, "float64" if reason == "cast" else "float32")
        given = (x.asnumpy(), y.asnumpy()) if reason == "numpy" else (x, y)
        batch = ours.split(given)
        assert batch.shapes is None
        if reason == "declared":
            assert batch.slots[0]["y"].dtype == np.int32
        elif reason == "cast":
            assert batch.slots[0]["y"].dtype == np.float32
        elif reason == "devices":
            assert batch.sizes == [2, 2]
        else:
            assert len(batch.slots[0]["x"]) == (2 if reason == "changed" else 4)


def test_a_batch_that_does_not_fit_is_refused_at_any_time() -> None:
    ours = feed()
    ours.split(raw(4))
    x, y = raw(4)
    for bad in [(x,), (x, y, y), (x, "y"), (x, y[:2]), ()]:
        with pytest.raises(DataError):
            ours.split(bad)
    same(ours.split((x, y)), x, y)
