"""Tensors that are copied together keep their values, shapes and dtypes."""

from typing import Any

import numpy as np
import pytest
import torch

from multifit.torch.engine import tensors as transfers

from .place import DEVICE

DTYPES = ("float32", "float16", "int32", "float32", "float64", "float32")
SHAPES: tuple[tuple[int, ...], ...] = ((2, 3), (1,), (0, 4), (), (5,), (3, 1, 2))


@pytest.fixture
def arrays() -> list[Any]:
    generator = np.random.default_rng(1)
    return [np.asarray(100 * generator.random(shape)).astype(dtype) for shape, dtype in zip(SHAPES, DTYPES)]


def equal(found: Any, arrays: Any) -> bool:
    assert len(found) == len(arrays)
    return all(np.array_equal(*pair) and pair[0].dtype == pair[1].dtype for pair in zip(found, arrays))


@pytest.mark.parametrize("most", [0, 4, 2**18])
def test_tensors_are_joined_by_dtype(arrays: Any, most: int, monkeypatch: Any) -> None:
    monkeypatch.setattr(transfers, "JOINED", most)
    found = transfers.joined([*map(torch.from_numpy, arrays)], torch.device("cpu"))
    assert equal([each.numpy() for each in found], arrays)


def test_arrays_come_back_from_the_device(arrays: Any) -> None:
    tensors = transfers.on_device(arrays, DEVICE)
    assert equal(transfers.on_host(tensors), arrays)
    others = [np.zeros_like(array) for array in arrays]
    transfers.copy_into(tensors, others)
    assert equal(transfers.on_host(tensors), others)
    assert arrays[0].any()  # it does not share its memory


def test_nothing_is_copied_of_nothing() -> None:
    assert transfers.on_host([]) == transfers.on_device([], DEVICE) == []
    transfers.copy_into([], [])
