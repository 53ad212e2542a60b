"""torch.distributed itself, in two processes over the loopback interface."""

from __future__ import annotations

import socket
from importlib.util import find_spec

import pytest

from tests.common.launch import launch

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")

EVERYTHING = """
import numpy as np, pytest
from multifit.distributed import connect

world = connect(timeout=30)
rank = world.rank
np.testing.assert_array_equal(world.meet("a batch", rank, 5), [[0, 5], [1, 5]])
np.testing.assert_array_equal(world.sum(np.arange(20) * (rank + 1)), np.arange(20) * 3)
assert world.gather_json({"rank": rank}) == [{"rank": 0}, {"rank": 1}]
first, second = world.gather_arrays([np.full(rank + 1, rank, "int8")])
np.testing.assert_array_equal(first[0], np.zeros(1, "int8"))
np.testing.assert_array_equal(second[0], np.ones(2, "int8"))
for dtypes in (["float32"], ["float32", "float64", "int32", "float32"]):
    arrays = [np.full((3, 4), rank + 1, dtype) for dtype in dtypes]
    world.meet("gradients")
    world.all_reduce(arrays)
    assert all((array == 3).all() for array in arrays), arrays
    arrays = [np.full((2,), rank + 1, dtype) for dtype in dtypes]
    world.meet("parameters")
    world.broadcast(arrays)
    assert all((array == 1).all() for array in arrays), arrays
large = np.full((300, 400), rank + 1, "float32")
arrays = [large, np.full(3, rank + 1, "float32"), np.full((400, 300), rank + 1, "float32").T]
world.meet("large gradients")
world.all_reduce(arrays)
assert large.nbytes > 2**18 and all((array == 3).all() for array in arrays), arrays
world.communicator.leave_note(f"{rank}")
world.meet("the notes are there")
assert world.communicator.read_notes("1") == [1] and world.communicator.read_notes("2") == []
try:
    with world.guarded():
        if rank:
            raise ValueError("a sample cannot be decoded")
        world.meet("a batch")
except Exception as error:
    print(type(error).__name__, str(error).splitlines()[0])
"""


def test_two_processes_meet_sum_gather_and_fail():
    job = launch("torch", 2, "-c", EVERYTHING)
    assert job.code == 0, job.outputs
    assert "PeerError rank 1 (" in job.outputs[0]
    assert "failed: ValueError: a sample cannot be decoded" in job.outputs[0]
    assert "ValueError a sample cannot be decoded" in job.outputs[1]


def test_a_process_that_does_not_come_is_an_error():
    code = "from multifit.distributed import connect; connect(timeout=2)"
    job = launch("torch", 1, "-c", code, WORLD_SIZE="2")
    assert job.code == 1
    assert "PeerError: this process could not reach the others by torch" in job.outputs[0]


def test_a_program_that_has_the_port_and_does_not_answer_is_an_error():
    code = "from multifit.distributed import connect; connect(timeout=1)"
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = str(stranger.getsockname()[1])
        job = launch("torch", 1, "-c", code, RANK="1", WORLD_SIZE="2", MASTER_PORT=port)
    assert job.code == 1
    assert f"by torch: no rank 0 answered at 127.0.0.1:{port} within 1 s; check that" in job.outputs[0]
