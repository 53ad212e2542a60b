"""Sums of NDArrays over ranks, through NumPy views of them, and by Horovod.

A module whose processes are threads is in Horovod's place; nightly/test_distributed.py has Horovod itself.
"""

import importlib
import sys
import threading
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from multifit import PeerError
from multifit.distributed import ALONE
from multifit.gluon.compat import mx
from multifit.gluon.data.arrays import host_view
from multifit.gluon.ranks import horovod
from multifit.gluon.ranks.collectives import all_reduce, broadcast
from multifit.gluon.ranks.horovod import HorovodWorld
from tests.common.ranks import run_ranks


@pytest.mark.parametrize(
    ("dtype", "shape"), [("float64", (1,)), ("float16", (3, 4)), ("float32", (2, 3, 5, 5)), ("uint8", (9,))]
)
def test_a_view_shares_the_memory(dtype, shape):
    array = mx.nd.arange(np.prod(shape), dtype=dtype).reshape(shape) * 2  # not computed yet
    view = host_view(array)
    assert view.dtype == dtype and view.shape == shape
    np.testing.assert_array_equal(view, array.asnumpy())
    view += 1
    np.testing.assert_array_equal(view, array.asnumpy())
    array += 1
    array.wait_to_read()
    np.testing.assert_array_equal(view, array.asnumpy())


def test_what_onednn_keeps_in_its_own_layout_is_brought_into_the_usual_one():
    net = mx.gluon.nn.Conv2D(16, 3, in_channels=16)
    net.initialize()
    net.hybridize(static_alloc=True)
    weight = net.weight.data()
    before = weight.asnumpy().copy()
    net(mx.nd.ones((2, 16, 8, 8))).wait_to_read()  # evaluation reorders the weight
    np.testing.assert_array_equal(host_view(weight), before)


def arrays_of(rank: int) -> list[Any]:
    return [mx.nd.full((2, 3), rank + 1), mx.nd.full((4,), rank + 1, ctx=mx.cpu(1), dtype="float64")]


def sums_and_copies(world: Any) -> list[set[float]]:
    """Return the values of arrays that were summed twice, and of arrays that were copied twice."""
    summed, copied = arrays_of(world.rank), arrays_of(world.rank)
    for _ in range(2):
        all_reduce(world, summed)
        broadcast(world, copied)
    return [set(array.asnumpy().ravel()) for array in (*summed, *copied)]


def test_arrays_are_summed_and_broadcast():
    assert run_ranks(2, sums_and_copies) == [[{6}, {6}, {1}, {1}]] * 2
    assert sums_and_copies(ALONE) == [{1}] * 4


# ---- Horovod -----------------------------------------------------------------------------------------------

of_thread: Any = threading.local()  # `world` of this rank
CALLS: list[str] = []


def grouped_allreduce_(arrays: Any, average: bool, name: str, priority: int) -> None:
    CALLS.append(f"{name}: {[array.shape for array in arrays]}")
    of_thread.world.all_reduce([host_view(array) for array in arrays])


@pytest.fixture
def fake(monkeypatch):
    """Put a module in Horovod's place."""
    CALLS.clear()
    module = ModuleType("horovod.mxnet")
    vars(module).update(
        init=lambda: None,
        shutdown=lambda: CALLS.append("shutdown"),
        rank=lambda: of_thread.world.rank,
        size=lambda: of_thread.world.size,
        grouped_allreduce_=grouped_allreduce_,
        allreduce=lambda array, average, name: mx.nd.array(of_thread.world.sum(array.asnumpy())),
        broadcast_=lambda array, root_rank, name: of_thread.world.broadcast([host_view(array)]),
        allgather_object=lambda value, name: of_thread.world.gather(value),
    )
    monkeypatch.setitem(sys.modules, "horovod", ModuleType("horovod"))
    monkeypatch.setitem(sys.modules, "horovod.mxnet", module)
    monkeypatch.setattr(horovod, "find_spec", lambda name: None)
    monkeypatch.setenv("HOROVOD_GLOO_TIMEOUT_SECONDS", "7")
    return module


def of_horovod(function: Any) -> Any:
    """Return a function of a thread's world that calls `function` with that of Horovod."""

    def run(world: Any) -> Any:
        of_thread.world = world
        return function(HorovodWorld(20))

    return run


@pytest.mark.usefixtures("fake")
def test_horovod_sums_gathers_and_copies():
    def check(world):
        rank = world.rank
        np.testing.assert_array_equal(world.sum([[rank, 1], [2, 3]]), [[3, 3], [6, 9]])
        assert world.sum(np.zeros((0, 2))).shape == (0, 2) and world.sum(1.0) == 3
        assert world.gather({"rank": rank}) == [{"rank": 0}, {"rank": 1}, {"rank": 2}]
        assert world.from_first(f"of rank {rank}") == "of rank 0"
        assert sums_and_copies(world) == [{18}, {18}, {1}, {1}]
        world.close()

    assert run_ranks(3, of_horovod(check)) == [None] * 3


@pytest.mark.usefixtures("fake")
def test_large_arrays_are_summed_from_the_last_on(monkeypatch):
    monkeypatch.setattr(horovod, "GROUP", 100)
    shapes = [(30,), (2,), (3,), (20,), (10,)]
    reduce = of_horovod(lambda world: all_reduce(world, [mx.nd.ones(shape) for shape in shapes]))
    assert run_ranks(2, reduce) == [None, None]
    assert set(CALLS) == {
        "multifit.sum.0.1055961300: [(10,), (20,)]",
        "multifit.sum.1.1716094639: [(3,), (2,), (30,)]",
    }


@pytest.mark.usefixtures("fake")
def test_a_name_is_used_for_other_arrays_when_its_last_operation_is_done(monkeypatch):
    waited = []
    monkeypatch.setattr(mx.nd.NDArray, "wait_to_read", lambda array: waited.append(array))
    one, other, longer = mx.nd.ones(3), mx.nd.ones(3), mx.nd.ones(4)

    def reduce(world):
        for array in (one, one, other, longer, one):
            world.all_reduce([array])
            world.broadcast([array])

    assert run_ranks(1, of_horovod(reduce)) == [None]
    assert [id(array) for array in waited] == [id(array) for array in (one, one, other, other, longer)]


def test_an_error_of_horovod_is_one_of_another_process(fake, monkeypatch):
    def shut_down(value, name):
        raise RuntimeError("Horovod has been shut down")

    monkeypatch.setattr(fake, "allgather_object", shut_down)
    (error,) = run_ranks(1, of_horovod(lambda world: world.gather(1)))
    assert isinstance(error, PeerError) and "Horovod has been shut down" in str(error)


@pytest.mark.usefixtures("fake")
def test_horovod_comes_after_torch(monkeypatch):
    """It aborts the process otherwise."""
    imported, load = [], importlib.import_module
    monkeypatch.setattr(horovod, "find_spec", lambda name: name)
    monkeypatch.setattr(horovod, "import_module", lambda name: imported.append(name) or load(name))
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    run_ranks(1, of_horovod(lambda world: None))
    assert imported == ["torch", "horovod.mxnet"]
