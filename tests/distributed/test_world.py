"""What ranks tell each other when they meet; the ranks are threads."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest

from multifit import PeerError
from multifit.distributed import ALONE, World
from multifit.distributed.processes import this_process
from tests.common.ranks import run_ranks, thread_communicators

SIZES = [2, 4]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("facts", [(), (1.0,), (float("nan"), -0.0, 1e300, 2.0**53 + 1, 4.0, 5.0, 6.0, 7.0)])
def test_a_meeting_gives_everybody_the_facts_of_all(size, facts):
    def meet(world):
        return world.meet("a batch", *[fact + world.rank for fact in facts])

    for rows in run_ranks(size, meet):
        expected = np.array([[fact + rank for fact in facts] for rank in range(size)]).reshape(size, -1)
        np.testing.assert_array_equal(rows, expected)
        assert rows.dtype == np.float64 and rows.shape == (size, len(facts))


@pytest.mark.parametrize("shape", [(), (3,), (0,), (2, 50)])
def test_sums_have_the_same_bits_on_all_ranks(shape):
    vectors = np.random.default_rng(0).standard_normal((4, *shape)) * 1e10
    totals = run_ranks(4, lambda world: world.sum(vectors[world.rank]))
    assert all(total.tobytes() == totals[0].tobytes() and total.shape == shape for total in totals)
    np.testing.assert_allclose(totals[0], vectors.sum(axis=0))


def test_sums_of_opposite_infinities_are_no_warning():
    for total in run_ranks(2, lambda world: world.sum([[np.inf, 1.0], [-np.inf, 2.0]][world.rank])):
        np.testing.assert_array_equal(total, [np.nan, 3.0])


def test_values_and_arrays_of_all_ranks_are_gathered():
    values = [{"a": [1, None, "ä"]}, "", 2.5]
    arrays = [
        [np.arange(6, dtype="int8").reshape(2, 3), np.float64(2)],
        [],
        [np.array([["ä", "bc"]]), np.zeros((0, 4), "float16")],
    ]

    def gather(world):
        return world.gather_json(values[world.rank]), world.gather_arrays(arrays[world.rank])

    for json_values, array_lists in run_ranks(3, gather):
        assert json_values == values
        for found, expected in zip(array_lists, arrays):
            assert [array.dtype for array in found] == [array.dtype for array in expected]
            for one, other in zip(found, expected):
                np.testing.assert_array_equal(one, other)
    errors = run_ranks(2, lambda world: world.gather_arrays([np.array([object()])]))
    assert all(isinstance(error, ValueError) for error in errors)


def test_arrays_are_summed_and_broadcast_in_place():
    def both(world):
        sums, copies = [np.ones(3), np.full((2, 2), 2.0)], [np.full(3, world.rank)]
        world.meet("gradients")
        world.all_reduce(sums)
        world.broadcast(copies)
        return sums, copies

    for sums, copies in run_ranks(3, both):
        np.testing.assert_array_equal(sums[0], np.full(3, 3.0))
        np.testing.assert_array_equal(sums[1], np.full((2, 2), 6.0))
        np.testing.assert_array_equal(copies[0], np.zeros(3))


def fail_on_rank_1(world):
    world.introduce()
    with world.guarded(), world.guarded():  # told once
        world.meet("the start")
        if world.rank == 1:
            raise ValueError("a sample cannot be decoded")
        world.sum(np.zeros(100))  # any meeting will do
    return


def test_all_ranks_know_who_failed_and_why():
    results = run_ranks(3, fail_on_rank_1)
    assert isinstance(results[1], ValueError)
    for error in (results[0], results[2]):
        assert isinstance(error, PeerError) and error.ranks == (1,)
        assert "rank 1 (" in str(error) and f"process {os.getpid()})" in str(error)
        assert "failed: ValueError: a sample cannot be decoded" in str(error)
        assert 'raise ValueError("a sample cannot be decoded")' in str(error)  # of the traceback


def test_a_rank_that_failed_is_out_of_the_run():
    def fail_then_meet(world):
        with pytest.raises((ValueError, PeerError)), world.guarded():
            if world.rank == 1:
                raise ValueError("no")
            world.meet("a batch")
        with pytest.raises(PeerError, match="rank 1 .*failed: ValueError: no"):
            world.meet("a batch")

    assert run_ranks(2, fail_then_meet) == [None, None]


def test_all_ranks_may_fail_at_once():
    def fail(world):
        with world.guarded():
            raise ValueError(f"rank {world.rank}")

    assert [str(error) for error in run_ranks(3, fail)] == ["rank 0", "rank 1", "rank 2"]


def test_ranks_that_went_apart_are_told_where_each_is():
    def go_apart(world):
        world.meet(f"batch {min(world.rank, 1)}")

    for error in run_ranks(3, go_apart):
        assert 'rank 0 is at "batch 0"; rank 1 is at "batch 1"; rank 2 is at "batch 1"' in str(error)


def test_what_must_agree_is_compared():
    for error in run_ranks(3, lambda world: world.agree("the spec", {"losses": world.rank // 2})):
        assert 'the spec must be the same on all ranks, but on rank 0: {"losses": 0}, ' in str(error)
        assert 'on rank 2: {"losses": 1}' in str(error) and error.ranks == (2,)
    run_ranks(2, lambda world: world.agree("the spec", [1]))


def test_ranks_with_other_versions_are_refused():
    for error in run_ranks(2, lambda world: world.introduce(versions={"numpy": f"1.{world.rank}"})):
        assert f"versions must be the same on all ranks, but on rank 0 ({this_process()}): " in str(error)
        assert '{"numpy": "1.0"}' in str(error) and '{"numpy": "1.1"}' in str(error)


def test_a_rank_that_is_lost_ends_the_others_meeting():
    def lose(world):
        world.introduce()
        if world.rank == 1:
            with pytest.raises(ConnectionError):
                world.communicator.lose()
        else:
            world.meet("a batch")

    error = run_ranks(2, lose)[0]
    assert isinstance(error, PeerError)
    assert 'rank 0 lost the others at "a batch": this rank cannot tell which one it is' in str(error)
    assert "(threads: connection closed by peer)" in str(error)


def test_a_rank_that_is_late_ends_the_others_meeting(monkeypatch):
    ended = []
    monkeypatch.setattr("multifit.distributed.meetings.end_without_waiting", lambda: ended.append(True))
    world = World(thread_communicators(2)[0], timeout=0.05)
    begin = time.monotonic()
    with pytest.raises(PeerError, match=r'rank 0 waited 0\.05 s for the others at "a batch"'):
        world.meet("a batch")
    assert time.monotonic() - begin < 5
    with pytest.raises(PeerError, match="rank 0 waited"):
        world.all_reduce([np.zeros(3)])
    world.close()
    world.close()
    assert ended and not world.communicator.closed


def test_closing_leaves_the_others():
    def close(world):
        world.meet("the end")
        world.close()
        with pytest.raises(PeerError, match="the connection to the other ranks is closed"):
            world.meet("the end")
        return world.communicator.closed

    assert run_ranks(2, close) == [True, True]


def test_a_meeting_has_room_for_eight_facts():
    world = World(thread_communicators(2)[0])
    with pytest.raises(ValueError, match="at most 8 facts, not 9"):
        world.meet("a batch", *range(9))


def test_alone_everything_is_as_given():
    array = np.arange(3.0)
    assert (ALONE.rank, ALONE.size, ALONE.first, ALONE.alone) == (0, 1, True, True)
    np.testing.assert_array_equal(ALONE.meet("a batch", 1, 2), [[1, 2]])
    assert ALONE.sum(array) is array and ALONE.gather_json("x") == ["x"]
    assert ALONE.gather_arrays([array])[0][0] is array
    with pytest.raises(ValueError, match="no"), ALONE.guarded():
        raise ValueError("no")
    ALONE.introduce(versions={})
    ALONE.agree("anything", object())
    ALONE.all_reduce([array])
    ALONE.broadcast([array])
    ALONE.close()
