"""Iterating over loaders: again and again, from within an epoch, and without batches."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from multifit.distributed import ALONE
from multifit.errors import DataError
from multifit.gluon.compat import mx
from multifit.gluon.data.loaders import iterate, iterate_from, repeat, replay_epochs
from multifit.gluon.distributed.reader import Reader
from multifit.seeding import random_state, set_random_state
from tests.common.data import Limited, Repeating, Scaling


def take(iterator: Iterator[Any], count: int) -> list[Any]:
    return [batch for batch, _ in zip(iterator, range(count))]


def data_iter() -> Any:
    return mx.io.NDArrayIter(np.arange(6.0), batch_size=2)


def first_values(batches: Any) -> list[float]:
    return [float(batch.data[0][0].asscalar()) for batch in batches]


def test_repeat_starts_again_at_the_end() -> None:
    assert take(repeat([1, 2, 3]), 7) == [1, 2, 3, 1, 2, 3, 1]
    assert first_values(take(repeat(data_iter()), 5)) == [0, 2, 4, 0, 2]


def test_a_first_batch_that_was_looked_at_is_yielded() -> None:
    first, batches = Reader(ALONE).peek_first([1, 2], "data")
    assert first == 1
    assert list(batches) == [1, 2]


def refreshed(*arguments: Any, **options: Any) -> Any:
    """Return a loader whose next pass was asked for ahead."""
    data = mx.gluon.data.DataLoader(*arguments, **options)
    data.refresh()
    return data


AHEAD = {"auto_reload": partial(mx.gluon.data.DataLoader, auto_reload=True), "refresh": refreshed}


@pytest.mark.parametrize("batchify", [None, list], ids=["read by index", "own batchify"])
@pytest.mark.parametrize("make", AHEAD.values(), ids=AHEAD)
def test_each_pass_over_a_loader_that_prefetches_is_whole(make: Any, batchify: Any) -> None:
    data = make(np.arange(14.0).reshape(7, 2), 3, batchify_fn=batchify)
    next(iter(iterate(data)))  # as a check reads the first batch only
    passes = [sum(map(len, iterate(data))) for _ in range(3)]
    assert [*passes, sum(map(len, data))] == [7] * 4


def test_the_rest_of_an_epoch() -> None:
    events: list[Any] = []

    def batches() -> Iterator[int]:
        for i in range(4):
            events.append(f"load {i}")
            yield i

    assert list(iterate_from(batches(), 2, lambda: events.append("ready"))) == [2, 3]
    assert events == ["load 0", "load 1", "ready", "load 2", "load 3"]


@pytest.mark.parametrize("kind", [mx.gluon.data.DataLoader, Repeating, Limited, Scaling])
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_the_rest_of_an_epoch_of_a_loader(kind: Any, workers: int) -> None:
    """It is what followed in the epoch, also of a subclass that has not one batch for each of its sampler."""
    samples = mx.gluon.data.ArrayDataset(np.arange(14.0).reshape(7, 2), np.arange(7.0))
    data = kind(samples, 2, shuffle=True, num_workers=workers)
    states = [random_state()]
    whole = []
    for batch in iterate(data, 0):
        whole.append([array.asnumpy().tolist() for array in batch])
        states.append(random_state())
    for skip, state in enumerate(states):
        set_random_state(states[0])
        rest = iterate_from(data, skip, partial(set_random_state, state), 0)
        assert [[array.asnumpy().tolist() for array in batch] for batch in rest] == whole[skip:]


@pytest.mark.parametrize("last_batch", ["keep", "rollover"])
def test_replayed_epochs_lead_to_the_same_epoch(last_batch: str) -> None:
    def make() -> Any:
        return mx.gluon.data.DataLoader(np.arange(7.0), 2, shuffle=True, last_batch=last_batch)

    def epoch(data: Any) -> list[Any]:
        return [array.asnumpy().tolist() for array in iterate(data)]

    np.random.seed(9)
    data = make()
    for number in range(3):
        np.random.seed(number)
        expected = epoch(data)
    np.random.seed(99)  # as a new process may have drawn other numbers
    resumed = make()
    replay_epochs(resumed, 2, np.random.seed)
    np.random.seed(2)
    assert epoch(resumed) == expected


@pytest.mark.parametrize("data", [[], iter([]), 3])
def test_peek_first_needs_a_batch(data: Any) -> None:
    with pytest.raises(DataError, match="data"):
        Reader(ALONE).peek_first(data, "data")
