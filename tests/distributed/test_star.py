"""Connections of rank 0 with every other rank: what goes through them, and what where there are none."""

from __future__ import annotations

import os
import signal
import time
from typing import Any, Callable

import numpy as np
import pytest

from multifit.distributed import star
from multifit.distributed.star import MAX_GATHER_BYTES, Star
from tests.common.ranks import run_threads, thread_communicators

CONNECTING = [512, 1]  # bytes of what the library gathers for it: the offer, and whether it was taken


def run_stars(size: int, function: Callable[[Star, int], Any], host: str = "127.0.0.1") -> list[Any]:
    """Call a function with each rank's star; return results and what rank 0's library gathered."""
    results: list[Any] = [None] * size
    gathered: list[int] = []

    def run(inner: Any) -> None:
        def gather(vector: Any) -> list[Any]:
            if inner.rank == 0:
                gathered.append(vector.nbytes)
            return inner.all_gather(vector)

        connected = Star(inner.rank, size, host, gather)
        try:
            results[inner.rank] = function(connected, inner.rank)
        except OSError as error:
            results[inner.rank] = error
        connected.close()

    run_threads(run, [(inner,) for inner in thread_communicators(size)])
    return [*results, gathered]


def gather_all(connected: Star, rank: int) -> None:
    for count in (1, 137, MAX_GATHER_BYTES, MAX_GATHER_BYTES + 1):
        rows = connected.all_gather(np.full(count, rank, np.uint8))
        np.testing.assert_array_equal(rows, [[number] * count for number in range(len(rows))])


@pytest.mark.parametrize("size", [2, 5])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_small_vectors_go_through_it_and_large_ones_through_the_library(size: int, host: str) -> None:
    *results, gathered = run_stars(size, gather_all, host)
    assert results == [None] * size and gathered == [*CONNECTING, MAX_GATHER_BYTES + 1]


@pytest.mark.parametrize("size", [2, 5])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_sums_are_added_in_the_order_of_ranks(size: int, dtype: str) -> None:
    vectors = np.random.RandomState(0).normal(0, 1e3, (3, size, 1000)).astype(dtype)

    def add_up(connected: Star, rank: int) -> None:
        connected.all_gather(np.zeros(3, np.uint8))
        for count, rows in zip((10, 1000, 5), vectors):
            own = rows[rank, :count].copy()
            assert connected.takes(own.nbytes)
            connected.all_reduce(own)
            np.testing.assert_array_equal(own, sum(row[:count] for row in rows))
        assert not connected.takes(star.MAX_SUM_BYTES // (size - 1) + 1)

    assert run_stars(size, add_up)[:-1] == [None] * size


def test_sums_that_are_not_finite_are_no_warning() -> None:
    largest = float(np.finfo("float32").max)

    def add_up(connected: Star, rank: int) -> None:
        connected.all_gather(np.zeros(3, np.uint8))
        own = np.array([[np.inf, largest, np.nan], [-np.inf, largest, 1.0]][rank], "float32")
        connected.all_reduce(own)  # a warning would be an error here
        np.testing.assert_array_equal(own, [np.nan, np.inf, np.nan])

    assert run_stars(2, add_up)[:-1] == [None] * 2


def test_a_single_process_has_no_connections() -> None:
    connected = Star(0, 1, "127.0.0.1", lambda vector: [vector])
    assert len(connected.all_gather(np.zeros(3, np.uint8))) == 1 and not connected.takes(3)


def unreachable(offer: Any, rank: int) -> Any:
    if rank == 2:
        raise ConnectionRefusedError("a firewall")
    return connect(offer, rank)


def as_a_stranger(offer: Any, rank: int) -> Any:
    return connect(offer._replace(token="0" * len(offer.token)) if rank == 2 else offer, rank)


def reset(connection: Any) -> Any:
    raise ConnectionResetError("rank 0 has closed it already")


connect = star._connect


@pytest.mark.parametrize(
    ("changes", "host"),
    [
        ({"_connect": unreachable}, "127.0.0.1"),
        ({"_connect": as_a_stranger}, "127.0.0.1"),
        ({"_ready": reset}, "127.0.0.1"),
        ({}, "no..name"),
        ({"RANKS": 2}, "127.0.0.1"),
    ],
    ids=["unreachable", "a stranger", "reset", "no name", "many ranks"],
)
def test_the_library_gathers_where_ranks_do_not_connect(
    changes: dict[str, Any], host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(star, "CONNECTING", 0.3)
    for name, value in changes.items():
        monkeypatch.setattr(star, name, value)
    *results, gathered = run_stars(3, gather_all, host)
    tried = [] if "RANKS" in changes else CONNECTING
    assert results == [None] * 3 and gathered == [*tried, 1, 137, MAX_GATHER_BYTES, MAX_GATHER_BYTES + 1]


@pytest.mark.parametrize("lost", [0, 2])
def test_a_rank_that_ends_ends_the_gather_of_all(lost: int) -> None:
    def end_one(connected: Star, rank: int) -> None:
        connected.all_gather(np.zeros(3, np.uint8))
        if rank == lost:
            connected.close()
        else:
            connected.all_gather(np.zeros(3, np.uint8))

    *results, _ = run_stars(3, end_one)
    assert [isinstance(result, OSError) for result in results] == [rank != lost for rank in range(3)]


def test_a_forked_process_does_not_keep_connections_open() -> None:
    children = []

    def fork(connected: Star, rank: int) -> None:
        connected.all_gather(np.zeros(3, np.uint8))
        if rank == 0:
            connected.all_gather(np.zeros(3, np.uint8))  # until the other ends
        child = os.fork()
        if not child:
            time.sleep(60)
            os._exit(0)
        children.append(child)

    lost, *_ = run_stars(2, fork)
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert isinstance(lost, OSError) and len(children) == 1
