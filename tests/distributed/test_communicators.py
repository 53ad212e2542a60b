"""What the communicators make of their libraries, over modules in their place.

The same with the libraries themselves: test_gloo.py, and nightly/ for Horovod.
"""

from __future__ import annotations

import atexit
import importlib
import sys
import threading

import numpy as np
import pytest

from multifit.distributed import star
from multifit.distributed.communicator import Notes
from multifit.gluon.compat import mx
from multifit.gluon.distributed import horovod
from multifit.gluon.distributed.collectives import all_reduce, broadcast
from multifit.gluon.distributed.horovod import HorovodCommunicator
from tests.distributed.fakes import fake_horovod, fake_torch, notes_server, run_with

CALLS: list[str] = []


@pytest.fixture
def torch_communicator(monkeypatch):
    """Return the class TorchCommunicator, over a module in torch's place."""
    for name, module in fake_torch().items():
        monkeypatch.setitem(sys.modules, name, module)
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "127.0.0.1")
    monkeypatch.delitem(sys.modules, "multifit.distributed.torch_communicator", raising=False)
    yield importlib.import_module("multifit.distributed.torch_communicator").TorchCommunicator
    sys.modules.pop("multifit.distributed.torch_communicator")


@pytest.fixture
def horovod_communicator(monkeypatch):
    """Return the class HorovodCommunicator, over a module in Horovod's place."""
    CALLS.clear()
    for name, module in fake_horovod(CALLS).items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(horovod, "find_spec", lambda name: None)
    monkeypatch.setenv("HOROVOD_GLOO_TIMEOUT_SECONDS", "7")
    with notes_server() as server:
        monkeypatch.setenv("HOROVOD_GLOO_RENDEZVOUS_ADDR", "127.0.0.1")
        monkeypatch.setenv("HOROVOD_GLOO_RENDEZVOUS_PORT", str(server.server_port))
        yield HorovodCommunicator
        server.shutdown()


@pytest.fixture(params=["torch", "torch alone", "horovod"])
def make(request, monkeypatch):
    """Return the class of a communicator; PyTorch's also without connections to rank 0."""
    library, _, alone = request.param.partition(" ")
    if alone:
        monkeypatch.setattr(star, "RANKS", 1)
    return request.getfixturevalue(f"{library}_communicator")


def check(world):
    """Do everything once; raise where something is not as it should be."""
    rank, communicator = world.rank, world.communicator
    assert isinstance(communicator, Notes)
    np.testing.assert_array_equal(world.meet("a batch", rank), [[0], [1], [2]])
    np.testing.assert_array_equal(world.sum(np.arange(20) * rank), np.arange(20) * 3)
    sums = [mx.nd.full(shape, rank) for shape in [(2, 3), (5,), (1,), (2**16,)]]
    sums += [mx.nd.full((4,), rank, dtype="float64")]
    copies = [mx.nd.full((3,), rank + 1), mx.nd.full((2,), rank + 1, dtype="int32")]
    for _ in range(2):
        world.meet("gradients")
        all_reduce(world, sums)
        broadcast(world, copies)
    assert all((array.asnumpy() == 9).all() for array in sums)
    assert all((array.asnumpy() == 1).all() for array in copies)
    if hasattr(communicator, "all_reduce_tensors"):
        tensors = [np.full(3, rank), np.full((2, 2), rank)]
        world.meet("tensors")
        world.all_reduce_tensors(tensors)
        assert all((tensor == 3).all() for tensor in tensors)
    if rank:
        communicator.leave_note("5")
    world.meet("the notes are there")
    assert communicator.read_notes("5") == [1, 2] and communicator.read_notes("6") == []
    world.close()


def test_a_communicator_meets_sums_copies_and_leaves_notes(make):
    assert run_with(make, 3, check) == [None] * 3


def test_horovod_sums_large_arrays_from_the_last_on(horovod_communicator, monkeypatch):
    monkeypatch.setattr(horovod, "GROUP", 100)
    shapes = [(30,), (2,), (3,), (20,), (10,)]

    def reduce(world):
        world.meet("gradients")
        all_reduce(world, [mx.nd.ones(shape) for shape in shapes])

    assert run_with(horovod_communicator, 1, lambda world: None) == [None]
    assert run_with(horovod_communicator, 2, reduce) == [None, None]
    assert set(CALLS) == {
        "multifit.sum.0.1055961300: [(10,), (20,)]",
        "multifit.sum.1.1716094639: [(3,), (2,), (30,)]",
    }


def test_a_name_is_used_for_other_arrays_when_its_last_operation_is_done(horovod_communicator, monkeypatch):
    waited = []
    monkeypatch.setattr(mx.nd.NDArray, "wait_to_read", lambda array: waited.append(array))
    one, other, longer = mx.nd.ones(3), mx.nd.ones(3), mx.nd.ones(4)

    def reduce(world):
        for array in (one, one, other, longer, one):
            world.communicator.all_reduce([array])
            world.communicator.broadcast([array])

    assert run_with(horovod_communicator, 1, reduce) == [None]
    of_sums, of_broadcasts = [one, other], [one, other, longer]
    assert [id(array) for array in waited] == [
        id(array) for array in (of_sums[0], of_broadcasts[0], of_broadcasts[1], of_sums[1], of_broadcasts[2])
    ]


def test_mxnet_does_not_wait_at_the_end_for_a_gather_that_hangs(horovod_communicator, monkeypatch):
    called, registered = [], []
    monkeypatch.setattr(atexit, "register", registered.append)
    monkeypatch.setattr(mx.base, "_notify_shutdown", lambda: called.append(True))

    def gather(world):
        registered[-1]()
        world.communicator._horovod.allgather = None  # fails, as far as the flag goes like one that hangs
        with pytest.raises(TypeError):
            world.communicator.all_gather(np.zeros(3, np.uint8))
        registered[-1]()

    assert run_with(horovod_communicator, 1, gather) == [None]
    assert len(registered) == 1 and called == [True]


def test_horovod_comes_after_torch(horovod_communicator, monkeypatch):
    imported = []
    monkeypatch.setattr(horovod, "find_spec", lambda name: name)
    monkeypatch.setattr(
        horovod, "import_module", lambda name: imported.append(name) or importlib.import_module(name)
    )
    monkeypatch.setitem(sys.modules, "torch", fake_torch()["torch"])
    run_with(horovod_communicator, 1, lambda world: None)
    assert imported == ["torch", "horovod.mxnet"]


def test_a_group_of_its_own_is_made_where_torch_is_initialised(torch_communicator, monkeypatch):
    dist = sys.modules["torch.distributed"]
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "destroy_process_group", None)  # is not called

    def one(world):
        communicator = world.communicator
        assert communicator._group == "a group of its own"
        communicator.leave_note("1")
        assert communicator.read_notes("1") == []  # whose store it is cannot be known
        communicator.close()

    assert run_with(torch_communicator, 2, one) == [None, None]


def test_torch_names_the_variables_that_it_misses(torch_communicator, monkeypatch):
    monkeypatch.delenv("MASTER_ADDR")
    for error in run_with(torch_communicator, 2, lambda world: None):
        assert "torch.distributed needs MASTER_ADDR in the environment" in str(error)
        assert "mpirun passes on with -x NAME=VALUE" in str(error)


def test_who_does_not_answer_where_the_first_rank_would_is_named(torch_communicator, monkeypatch):
    """Torch itself would wait without end."""
    module, ended = sys.modules["multifit.distributed.torch_communicator"], threading.Event()
    monkeypatch.setattr(module, "NOTICING", 0.0)
    monkeypatch.setattr(module, "end_without_waiting", lambda: None)
    monkeypatch.setattr(module.dist, "rendezvous", lambda url, timeout: iter(ended.wait, None))
    monkeypatch.setenv("MASTER_PORT", "29400")
    with pytest.raises(
        TimeoutError, match="no rank 0 answered at 127.0.0.1:29400 within 0.01 s; .*MASTER_PORT"
    ):
        torch_communicator(0.01)
    ended.set()
