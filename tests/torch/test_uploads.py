"""Batches on their way to the device; on the CPU, nothing is copied, and streams and events do nothing."""

import numpy as np
import pytest
import torch

from multifit.gluon.compat import mx
from multifit.torch.traced.tensors import MAX_BATCHES, MAX_BYTES, MIN_BATCHES, Uploads, too_many

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


def test_copies_have_the_values_of_the_batch_and_few_wait() -> None:
    upload = Uploads(DEVICE)
    for count in range(MAX_BATCHES + 3):
        batch = {"label": torch.ones(3, dtype=torch.int8), "image": torch.full((3, 2), float(count))}
        batch.update(scale=torch.tensor(2.0, dtype=torch.float64), none=torch.zeros(0, 2))
        copies = upload.copied(batch)
        assert all(torch.equal(copies[name].cpu(), tensor) for name, tensor in batch.items())
        assert all(copies[name] is not tensor for name, tensor in batch.items())
        assert len(upload._waiting) <= MAX_BATCHES


@pytest.mark.parametrize(
    ("batches", "size", "expected"),
    [
        (0, 0, False), (MAX_BATCHES, 1, False), (MAX_BATCHES + 1, 1, True),
        (MIN_BATCHES, MAX_BYTES, False), (MIN_BATCHES + 1, MAX_BYTES, True),
        (4, MAX_BYTES // 4, False), (5, MAX_BYTES // 4, True),
    ],
)  # fmt: skip
def test_how_many_batches_may_wait(batches: int, size: int, expected: bool) -> None:
    assert too_many(batches, batches * size) is expected
