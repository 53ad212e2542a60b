"""Batches on their way to the device; on the CPU, nothing is copied, and streams and events do nothing."""

from typing import Any

import numpy as np
import pytest
import torch

from multifit.gluon.compat import mx
from multifit.torch.engine import tensors as uploads
from multifit.torch.engine.tensors import MAX_BATCHES, MAX_BYTES, MIN_BATCHES, Uploads, too_many

from .place import DEVICE

VALUES = np.arange(6).reshape(3, 2)
ARRAYS = {
    **{each: mx.nd.array(VALUES, dtype=each) for each in ("float16", "float32", "float64", "int8", "int64")},
    "a part of an array": mx.nd.array(np.arange(10).reshape(5, 2))[0:3],
    "NumPy": VALUES.astype("float32"),
    "sparse": mx.nd.array(VALUES).tostype("csr"),
}  # fmt: skip


@pytest.mark.parametrize("name", ARRAYS)
def test_values_and_dtypes_are_those_of_the_array(name: str) -> None:
    array = ARRAYS[name]
    (tensor,) = Uploads(torch.device("cpu"))({"image": array}).values()
    expected = array if isinstance(array, np.ndarray) else array.asnumpy()
    assert tensor.numpy().dtype == expected.dtype
    np.testing.assert_array_equal(tensor.numpy(), expected)


def test_an_array_is_not_copied_on_the_cpu() -> None:
    upload, array = Uploads(torch.device("cpu")), mx.nd.zeros((3, 2))
    first, second = (upload({"image": array, "absent": None})["image"] for _ in range(2))
    assert first.data_ptr() == second.data_ptr()
    array[:] = 5
    array.wait_to_read()
    assert (first == 5).all()
    del array
    assert (first == 5).all()


@pytest.mark.parametrize(("small", "held"), [(0, 1), (uploads.SMALL, 0)], ids=["large", "small"])
def test_batches_that_the_device_is_past_are_not_held(
    small: int, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "SMALL", small)
    upload = Uploads(torch.device("cpu"))

    def alive() -> int:
        return sum(
            batch is not None for batch in [upload._last[0], *(each for _, each, _ in upload._waiting)]
        )

    for _ in range(MAX_BATCHES + 3):
        upload.copied({"image": torch.zeros(3, 2), "label": torch.zeros(3)})
        assert alive() == held and len(upload._waiting) <= MAX_BATCHES


@pytest.mark.parametrize("small", [0, uploads.SMALL], ids=["on its own stream", "on the current stream"])
def test_copies_have_the_values_of_the_batch(small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "SMALL", small)
    copied = Uploads(DEVICE).copied
    for count in range(3):
        batch = {"label": torch.ones(3, dtype=torch.int8), "image": torch.full((3, 2), float(count))}
        batch.update(scale=torch.tensor(2.0, dtype=torch.float64), none=torch.zeros(0, 2))
        copies = copied(batch)
        assert all(torch.equal(copies[name].cpu(), tensor) for name, tensor in batch.items())


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], False),
        ([1] * MAX_BATCHES, False),
        ([1] * (MAX_BATCHES + 1), True),
        ([MAX_BYTES] * MIN_BATCHES, False),
        ([MAX_BYTES] * (MIN_BATCHES + 1), True),
        ([MAX_BYTES // 4] * 4, False),
        ([MAX_BYTES // 4] * 5, True),
    ],
)
def test_how_many_batches_may_wait(sizes: Any, expected: bool) -> None:
    assert too_many(len(sizes), sum(sizes)) is expected
