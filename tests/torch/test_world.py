"""torch.distributed itself: in one process, and in two over the loopback interface."""

import inspect
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.common.launch import ROOT, free_port, launch

torch = pytest.importorskip("torch")
dist = torch.distributed


def check(world):
    """Check all that a world does; `total` is what the ranks' numbers, counted from 1, add up to."""
    number, total = world.rank + 1, world.size * (world.size + 1) // 2
    np.testing.assert_array_equal(world.sum(np.arange(20) * number), np.arange(20) * total)
    assert world.sum(number) == total and world.sum(np.zeros((0, 2))).shape == (0, 2)
    values = world.gather({"rank": world.rank, "values": [np.zeros(2)] * world.rank})
    assert values[0] == {"rank": 0, "values": []} and len(values) == world.size
    assert world.from_first(f"of rank {world.rank}") == "of rank 0"
    for dtypes in (["float32"], ["float32", "float64", "int32", "float32"]):
        arrays = [np.full((3, 4), number, dtype) for dtype in dtypes]
        world.all_reduce(iter(arrays))
        assert all((array == total).all() for array in arrays), arrays
        arrays = [np.full((2,), number, dtype) for dtype in dtypes]
        world.broadcast(arrays)
        assert all((array == 1).all() for array in arrays), arrays
    large = np.full((300, 400), number, "float32")
    arrays = [large, np.full(3, number, "float32"), np.full((400, 300), number, "float32").T]
    world.all_reduce(arrays)
    assert large.nbytes > 2**18 and all((array == total).all() for array in arrays), arrays
    tensors = [torch.full((3,), float(number)), torch.full((2, 2), number)]
    world.all_reduce_tensors(tensors)
    assert all((tensor == total).all() for tensor in tensors), tensors


TWO = f"""
import numpy as np
import torch
import torch.distributed as dist
from multifit.distributed import connect

{inspect.getsource(check)}

world = connect(timeout=30)
check(world)
check(connect("torch", timeout=30))  # a group of its own, as torch.distributed is initialised
world.close()
assert not dist.is_initialized()
"""


def test_two_processes():
    job = launch("torch", 2, "-c", TWO)
    assert job.code == 0, job.outputs


def test_one_process(monkeypatch):
    place = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    from multifit.torch.world import TorchWorld

    world = TorchWorld(20)
    try:
        again = TorchWorld(20)  # another group
        check(world)
        check(again)
        again.close()
        assert dist.is_initialized() and world.alone
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
