"""NumPy views of NDArrays, and sums of NDArrays over ranks through them."""

import numpy as np
import pytest

from multifit.distributed import ALONE
from multifit.gluon.compat import mx
from multifit.gluon.data.arrays import host_view
from multifit.gluon.ranks.collectives import all_reduce, broadcast
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


def arrays_of(rank):
    return [mx.nd.full((2, 3), rank + 1), mx.nd.full((4,), rank + 1, ctx=mx.cpu(1), dtype="float64")]


def test_arrays_are_summed_and_broadcast():
    summed, copied = ([arrays_of(rank) for rank in range(2)] for _ in range(2))

    def both(world):
        all_reduce(world, summed[world.rank])
        broadcast(world, copied[world.rank])

    assert run_ranks(2, both) == [None, None]
    for rank in range(2):
        assert all((array.asnumpy() == 3).all() for array in summed[rank])
        assert all((array.asnumpy() == 1).all() for array in copied[rank])


def test_alone_nothing_is_done():
    all_reduce(ALONE, arrays_of(0))
    broadcast(ALONE, [object()])
