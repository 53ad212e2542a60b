"""CachedGraph: one graph, two ways of running it, the same numbers."""

from typing import Any

import numpy as np
import pytest

from multifit.gluon.step import cached_graph
from multifit.gluon.step.cached_graph import CachedGraph
from tests.common.nets import sequential

import mxnet as mx  # isort: skip
from mxnet import autograd, nd  # isort: skip
from mxnet.gluon import nn  # isort: skip


def make_graph(last: Any = None, *layers: Any) -> tuple[Any, CachedGraph]:
    net = sequential(nn.Dense(4, activation="tanh", in_units=3), nn.Dense(2, in_units=4), *layers)
    net.initialize(mx.init.Xavier())
    return net, CachedGraph(lambda F, x: [F.sum(net(x)), net(x)], net.collect_params, last)


def step(graph: CachedGraph, x: Any) -> Any:
    with autograd.record():
        total, output = graph.run([x], x.shape)
    total.backward()
    return output


def check_steps(net: Any, graph: CachedGraph, sizes: list[int]) -> None:
    """Check outputs, which stay as they are, and gradients of batches of these sizes."""
    outputs = []
    for size in sizes:
        x = nd.random.normal(shape=(size, 3))
        outputs.append((x, step(graph, x)))
        gradients = [p.grad().asnumpy() for p in net.collect_params().values()]
        with autograd.record():
            total = net(x).sum()
        expected = autograd.grad(total, [p.data() for p in net.collect_params().values()])
        for one, other in zip(gradients, expected):
            np.testing.assert_allclose(one, other.asnumpy(), rtol=1e-5, atol=1e-6)
    for x, output in outputs:
        np.testing.assert_allclose(output.asnumpy(), net(x).asnumpy(), rtol=1e-5, atol=1e-6)


# sizes of batches, a shape that is known from before, and the sizes for which memory is planned at the end
SIZES: dict[str, tuple[list[int], Any, list[int]]] = {
    "no shape comes again": ([5, 4, 3, 2, 1], None, []),
    "some come again": ([5, 4, 4, 5, 4, 3, *[5] * 20], None, [4, 5]),
    "one is known from before": ([5], (5, 3), [5]),
    "more than are planned": ([2, 2, 3, 4, 4, 5, 5], None, [2, 4]),
}


@pytest.mark.parametrize(("sizes", "last", "planned"), SIZES.values(), ids=SIZES)
def test_every_batch_has_its_own_numbers(sizes: Any, last: Any, planned: Any, monkeypatch: Any) -> None:
    for name in ("MAX_PLANS", "MAX_SEEN"):
        monkeypatch.setattr(cached_graph, name, 2)
    net, graph = make_graph(last)
    check_steps(net, graph, sizes)
    assert graph.is_traced and [shape for shape, _ in graph._plans] == [(size, 3) for size in planned]


@pytest.mark.parametrize("renew", ["initialize", "grad_req", "reset_ctx"])
def test_new_gradient_arrays_are_written_to(renew: str) -> None:
    """MXNet's static graphs would write into the old ones."""
    net, graph = make_graph()
    check_steps(net, graph, [5, 5, 5])
    if renew == "initialize":
        net.initialize(mx.init.Xavier(), force_reinit=True)
    elif renew == "reset_ctx":
        net.collect_params().reset_ctx(mx.cpu())
    else:
        net.collect_params().setattr("grad_req", "null")
        net.collect_params().setattr("grad_req", "write")
    check_steps(net, graph, [5, 5])


def test_running_statistics_are_there_when_they_are_read() -> None:
    """MXNet would not know that operators of a fully planned graph write them."""
    net, graph = make_graph(None, nn.BatchNorm(in_channels=2))
    mean, average = net[2].running_mean, np.zeros(2)
    for _ in range(20):
        x = nd.random.normal(shape=(64, 3))
        before = net[1](net[0](x)).asnumpy().mean(axis=0)
        step(graph, x)
        average = 0.9 * (0.9 * average + 0.1 * before) + 0.1 * before  # the function calls the net twice
        np.testing.assert_allclose(mean.data().asnumpy(), average, rtol=1e-4, atol=1e-6)


def test_other_missing_arrays_than_before_are_an_error() -> None:
    graph = CachedGraph(lambda F, x, y: [x if y is None else x + y], dict)
    assert graph.run([nd.ones((4, 2)), None])[0].shape == (4, 2)
    with pytest.raises(ValueError, match="other slots are None than in the first batch"):
        graph.run([nd.ones((4, 2)), nd.ones((4, 2))])
