"""Iterating over loaders: again and again, from within an epoch, and without batches."""

from __future__ import annotations

from typing import Any, Iterator

import numpy as np
import pytest

from multifit.errors import DataError
from multifit.gluon.compat import mx
from multifit.gluon.data.loaders import batch_count, iterate, iterate_from, peek_first, repeat


def take(iterator: Iterator[Any], count: int) -> list[Any]:
    return [batch for batch, _ in zip(iterator, range(count))]


def data_iter() -> Any:
    return mx.io.NDArrayIter(np.arange(6.0), batch_size=2)


def first_values(batches: Any) -> list[float]:
    return [float(batch.data[0][0].asscalar()) for batch in batches]


def test_repeat_starts_again_at_the_end() -> None:
    assert take(repeat([1, 2, 3]), 7) == [1, 2, 3, 1, 2, 3, 1]
    assert first_values(take(repeat(data_iter()), 5)) == [0, 2, 4, 0, 2]


def test_repeat_finishes_a_pass_that_has_begun() -> None:
    first, batches = peek_first([1, 2], "data")
    assert first == next(batches) == 1
    assert take(repeat([1, 2], batches), 4) == [2, 1, 2, 1]


def test_repeat_ends_with_a_loader_that_can_be_read_only_once() -> None:
    assert list(repeat(iter([1, 2]))) == [1, 2]


def test_a_data_iter_is_reset() -> None:
    data = data_iter()
    assert first_values(iterate(data)) == first_values(iterate(data)) == [0, 2, 4]


def test_the_rest_of_an_epoch() -> None:
    events: list[Any] = []

    def batches() -> Iterator[int]:
        for i in range(4):
            events.append(f"load {i}")
            yield i

    assert list(iterate_from(batches(), 2, lambda: events.append("ready"))) == [2, 3]
    assert events == ["load 0", "load 1", "ready", "load 2", "load 3"]


def test_batch_count() -> None:
    assert (batch_count([1, 2]), batch_count(iter([1]))) == (2, None)


@pytest.mark.parametrize("data", [[], iter([]), 3])
def test_peek_first_needs_a_batch(data: Any) -> None:
    with pytest.raises(DataError, match="data"):
        peek_first(data, "data")
