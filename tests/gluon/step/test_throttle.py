"""Throttle: Python waits for batches pushed long ago, and for nothing else."""

import numpy as np
import pytest

from multifit.gluon.step.stage import MAX_BATCHES, MAX_BYTES, MIN_BATCHES, Throttle


class Array:
    """An array that counts how often it was waited for."""

    def __init__(self, size: int = 1, dtype: str = "float32") -> None:
        self.shape, self.dtype, self.waited = (size,), np.dtype(dtype), 0

    def wait_to_read(self) -> None:
        self.waited += 1


def test_only_old_batches_are_waited_for_and_none_that_were_cleared() -> None:
    throttle, old = Throttle(), Array()
    throttle.push([old])
    throttle.clear()
    arrays = [[Array(), Array()] for _ in range(MAX_BATCHES + 3)]
    for i, batch in enumerate(arrays):
        throttle.push(batch)
        done = max(0, i + 1 - MAX_BATCHES)
        assert [a.waited for a, _ in arrays] == [1] * done + [0] * (len(arrays) - done)
    assert not old.waited


@pytest.mark.parametrize(("megabytes", "limit"), [(0.01, MAX_BATCHES), (2, 32), (500, MIN_BATCHES)])
def test_few_large_batches_may_be_pending(megabytes: float, limit: int) -> None:
    throttle = Throttle()
    size = int(megabytes * 2**20 / 4)
    throttle.fit_to([Array(size // 2), None, Array(size // 8, "float64"), Array(size // 4)])
    assert throttle.limit == limit and limit * size * 4 <= max(MAX_BYTES, MIN_BATCHES * size * 4)
    throttle.fit_to([Array()])
    assert throttle.limit == limit  # the largest batch counts
