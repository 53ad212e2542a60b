"""CachedGraph: one graph, two ways of running it, the same numbers."""

from typing import Any

import numpy as np
import pytest

from multifit.gluon.step import cached_graph
from multifit.gluon.step.cached_graph import CachedGraph

import mxnet as mx  # isort: skip
from mxnet import autograd, gluon, nd  # isort: skip

RNG = np.random.RandomState(3)


def make_graph(last: Any = None, norm: bool = False) -> tuple[Any, CachedGraph]:
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(4, activation="tanh", in_units=3), gluon.nn.Dense(2, in_units=4))
    if norm:
        net.add(gluon.nn.BatchNorm(in_channels=2))
    net.initialize(mx.init.Xavier())
    return net, CachedGraph(lambda F, x: [F.sum(net(x)), net(x)], net.collect_params, last)


def rows(count: int) -> Any:
    return nd.array(RNG.normal(size=(count, 3)))


def step(graph: CachedGraph, x: Any) -> Any:
    with autograd.record():
        total, output = graph.run([x], x.shape)
    total.backward()
    return output


def expected(net: Any, x: Any) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return what the net itself gives, op by op, and its gradients."""
    parameters = [p for p in net.collect_params().values() if p.grad_req != "null"]
    with autograd.record():
        output = net(x)
        total = output.sum()
    return output.asnumpy(), [g.asnumpy() for g in autograd.grad(total, [p.data() for p in parameters])]


def check(net: Any, output: Any, x: Any) -> None:
    """Check the output, and the gradients that the step has left."""
    gradients = [p.grad().asnumpy() for p in net.collect_params().values() if p.grad_req != "null"]
    expected_output, expected_gradients = expected(net, x)
    np.testing.assert_allclose(output.asnumpy(), expected_output, rtol=1e-5, atol=1e-6)
    for one, other in zip(gradients, expected_gradients):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("sizes", [[5, 5, 2, 5, 2, 5], [5, 4, 3, 2, 1], [5, 5, 2, 2, 5, 5]], ids=str)
def test_every_batch_has_its_own_numbers(sizes: list[int]) -> None:
    net, graph = make_graph()
    for size in sizes:
        x = rows(size)
        check(net, step(graph, x), x)


def planned(graph: CachedGraph) -> list[Any]:
    """Return the shapes of batches for which a graph has planned memory."""
    return [shape for shape, _ in graph._plans]


def test_it_is_planned_for_shapes_that_come_again() -> None:
    _, graph = make_graph()
    for size, shapes in ((5, []), (4, []), (4, [4]), (5, [4, 5]), (4, [4, 5]), (3, [4, 5])):
        step(graph, rows(size))
        assert graph.is_traced and planned(graph) == [(size, 3) for size in shapes]


def test_a_shape_that_is_known_from_before_is_planned_with_the_first_batch() -> None:
    net, graph = make_graph(last=(5, 3))
    x = rows(5)
    check(net, step(graph, x), x)
    assert planned(graph) == [(5, 3)]


def test_planning_ends_after_many_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached_graph, "MAX_PLANS", 2)
    monkeypatch.setattr(cached_graph, "MAX_SEEN", 2)
    net, graph = make_graph()
    for size in (2, 2, 3, 4, 4, 5, 5):
        x = rows(size)
        check(net, step(graph, x), x)
    assert planned(graph) == [(2, 3), (4, 3)]


@pytest.mark.parametrize("renew", ["initialize", "grad_req", "reset_ctx"])
def test_new_gradient_arrays_are_written_to(renew: str) -> None:
    """MXNet's static graphs would write into the old ones."""
    net, graph = make_graph()
    for _ in range(3):
        step(graph, rows(5))
    if renew == "initialize":
        net.initialize(mx.init.Xavier(), force_reinit=True)
    elif renew == "reset_ctx":
        net.collect_params().reset_ctx(mx.cpu())
    else:
        net.collect_params().setattr("grad_req", "null")
        net.collect_params().setattr("grad_req", "write")
    for _ in range(2):
        x = rows(5)
        check(net, step(graph, x), x)


def test_outputs_may_be_kept() -> None:
    net, graph = make_graph()
    batches = [rows(5) for _ in range(30)]
    outputs = [step(graph, x) for x in batches]
    for x, output in zip(batches, outputs):
        np.testing.assert_allclose(output.asnumpy(), expected(net, x)[0], rtol=1e-5, atol=1e-6)


def test_running_statistics_are_there_when_they_are_read() -> None:
    """MXNet would not know that operators of a fully planned graph write them."""
    net, graph = make_graph(norm=True)
    mean, average = net[2].running_mean, np.zeros(2)
    for _ in range(20):
        x = rows(64)
        before = net[1](net[0](x)).asnumpy().mean(axis=0)
        step(graph, x)
        average = 0.9 * (0.9 * average + 0.1 * before) + 0.1 * before  # the function calls the net twice
        np.testing.assert_allclose(mean.data().asnumpy(), average, rtol=1e-4, atol=1e-6)


def test_each_device_has_its_own_plans() -> None:
    net = gluon.nn.Dense(2, in_units=3)
    net.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
    graph = CachedGraph(lambda F, x: [F.sum(net(x))], net.collect_params)
    for _ in range(4):
        for device, size in ((0, 4), (1, 3)):
            x = rows(size).as_in_context(mx.cpu(device))
            with mx.cpu(device):
                total = graph.run([x], x.shape)[0]
            np.testing.assert_allclose(total.asscalar(), net(x).sum().asscalar(), rtol=1e-5)
    assert planned(graph) == [(4, 3), (3, 3)]


def test_other_missing_arrays_than_before_are_an_error() -> None:
    net = gluon.nn.Dense(2, in_units=3)
    net.initialize()
    graph = CachedGraph(lambda F, x, y: [net(x) if y is None else net(x) + y], net.collect_params)
    x = rows(4)
    assert graph.run([x, None])[0].shape == (4, 2)
    with pytest.raises(ValueError, match="other slots are None than in the first batch"):
        graph.run([x, nd.ones((4, 2))])


def while_small(F: Any, x: Any) -> Any:
    """Double an array three times, by a loop within the graph."""
    count = F.zeros((1,))
    step = lambda at, y: ([], [at + 1, 2 * y])  # noqa: E731
    return F.contrib.while_loop(lambda at, y: at < 3, step, [count, x], max_iterations=5)[1][1]


def test_control_flow_within_a_planned_graph() -> None:
    net = gluon.nn.Dense(4, activation="tanh", in_units=3)
    net.initialize(mx.init.Xavier())
    graph = CachedGraph(lambda F, x: [F.sum(F.square(while_small(F, net(x))))], net.collect_params)
    for _ in range(6):
        x = rows(5)
        with autograd.record():
            (total,) = graph.run([x], x.shape)
        total.backward()
        found = [total.asscalar(), net.weight.grad().asnumpy()]
        with autograd.record():
            expected_total = nd.sum(nd.square(while_small(nd, net(x))))
        expected_total.backward()
        np.testing.assert_allclose(found[0], expected_total.asscalar(), rtol=1e-5)
        np.testing.assert_allclose(found[1], net.weight.grad().asnumpy(), rtol=1e-4, atol=1e-6)
        evaluated = [graph.run([x], x.shape)[0].asscalar() for _ in range(2)]
        np.testing.assert_allclose(evaluated, [found[0]] * 2, rtol=1e-5)
