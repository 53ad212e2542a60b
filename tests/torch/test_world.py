"""torch.distributed itself: in one process, and in two over the loopback interface."""

import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.common.launch import ROOT, free_port, launch

dist = pytest.importorskip("torch.distributed")

EVERYTHING = """
import numpy as np
import torch
import torch.distributed as dist
from multifit import PeerError
from multifit.distributed import connect

def check(world):
    rank = world.rank
    np.testing.assert_array_equal(world.sum(np.arange(20) * (rank + 1)), np.arange(20) * 3)
    assert world.sum(rank) == 1 and world.sum(np.zeros((0, 2))).shape == (0, 2)
    assert world.gather({"rank": rank, "values": [np.zeros(2)] * rank})[0] == {"rank": 0, "values": []}
    assert world.from_first(f"of rank {rank}") == "of rank 0"
    for dtypes in (["float32"], ["float32", "float64", "int32", "float32"]):
        arrays = [np.full((3, 4), rank + 1, dtype) for dtype in dtypes]
        world.all_reduce(iter(arrays))
        assert all((array == 3).all() for array in arrays), arrays
        arrays = [np.full((2,), rank + 1, dtype) for dtype in dtypes]
        world.broadcast(arrays)
        assert all((array == 1).all() for array in arrays), arrays
    large = np.full((300, 400), rank + 1, "float32")
    arrays = [large, np.full(3, rank + 1, "float32"), np.full((400, 300), rank + 1, "float32").T]
    world.all_reduce(arrays)
    assert large.nbytes > 2**18 and all((array == 3).all() for array in arrays), arrays
    tensors = [torch.full((3,), rank + 1.0), torch.full((2, 2), rank + 1)]
    world.all_reduce_tensors(tensors)
    assert all((tensor == 3).all() for tensor in tensors), tensors

world = connect(timeout=30)
check(world)
check(connect("torch", timeout=30))  # a group of its own, as torch.distributed is initialised
world.close()
assert not dist.is_initialized()
"""


def test_two_processes_sum_gather_and_copy():
    job = launch("torch", 2, "-c", EVERYTHING)
    assert job.code == 0, job.outputs


def test_one_process(monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_PORT", free_port())
    from multifit.torch.world import TorchWorld

    world = TorchWorld(20)
    try:
        again = TorchWorld(20)  # another group
        assert (world.sum([1, 2]) == [1, 2]).all() and again.gather("one") == ["one"]
        assert again.from_first(3) == 3 and (world.rank, world.size, world.alone) == (0, 1, True)
        arrays = [np.ones(3, "float32"), np.ones((2, 2)), np.ones(2**17, "float32")]
        world.all_reduce(arrays)
        world.broadcast(arrays)
        tensors = [sys.modules["torch"].ones(3)]
        world.all_reduce_tensors(tensors)
        assert all((array == 1).all() for array in [*arrays, *tensors])
        again.close()
        assert dist.is_initialized()
    finally:
        world.close()
        world.close()
    assert not dist.is_initialized()


def test_a_process_that_does_not_come_is_an_error():
    code = "from multifit.distributed import connect; connect(timeout=2)"
    job = launch("torch", 1, "-c", code, WORLD_SIZE="2")
    assert job.code == 1
    assert "PeerError: this process could not reach the others by torch" in job.outputs[0]


FAILING = """
import sys, time
import numpy as np
from multifit import MultiEstimator, connect
from mxnet import gluon

world = connect(timeout=60)

class Fails:
    def batch_end(self, estimator, **_):
        if world.rank == 1 and estimator.state.step == 5:
            print("FAILS", time.time(), flush=True)
            raise ValueError("a sample cannot be decoded")

net = gluon.nn.Dense(2)
net.hybridize()
estimator = MultiEstimator(net, gluon.loss.L2Loss(), engine="torch", world=world)
data = [(np.ones((8, 4), "float32"), np.ones((8, 2), "float32"))] * 4
estimator.fit(data, epochs=1000, event_handlers=[Fails()])
"""


def test_a_rank_that_fails_ends_the_run_with_its_error_in_the_log(tmp_path: Path):
    (tmp_path / "failing.py").write_text(FAILING)
    runner = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = ["env", f"PYTHONPATH={ROOT}", "OMP_NUM_THREADS=1", *runner, str(tmp_path / "failing.py")]
    job = subprocess.run(command, timeout=120, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    failed = re.search(r"FAILS ([0-9.]+)", job.stdout)
    assert failed and job.returncode != 0, job.stdout
    assert time.time() - float(failed[1]) < 20, job.stdout
    assert 'raise ValueError("a sample cannot be decoded")' in job.stdout  # of the traceback
    assert "ValueError: a sample cannot be decoded" in job.stdout
