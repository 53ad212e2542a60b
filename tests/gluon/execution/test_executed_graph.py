"""ExecutedGraph: what autograd would compute, without it, for small batches."""

from typing import Any

import numpy as np
import pytest

from multifit import MultiEstimator, TrainerSpec
from multifit.gluon.execution import bound_executor
from multifit.gluon.execution.cached_graph import ExecutedGraph
from tests.common.data import in_batches, two_head_arrays
from tests.common.nets import two_heads
from tests.common.specs import two_head_spec

import mxnet as mx  # isort: skip
from mxnet import autograd, gluon, nd  # isort: skip

RNG = np.random.RandomState(5)


def make_graph(*layers: Any) -> tuple[Any, ExecutedGraph]:
    """Return a net, and the graph of the weighted sum of its squares, behind this sum."""
    net = gluon.nn.HybridSequential()
    net.add(*layers or (gluon.nn.Dense(2, in_units=3, activation="tanh"),))
    net.initialize(mx.init.Xavier())

    def compute(F: Any, size: Any, weights: Any, x: Any) -> list[Any]:
        squares = F.sum(F.square(net(x)))
        return [F.BlockGrad(squares / size), squares * weights]

    return net, ExecutedGraph(compute, net.collect_params, None, lambda: 1)


def run(graph: ExecutedGraph, x: Any, weight: Any) -> list[Any]:
    with autograd.record():
        return graph.run([nd.array([float(len(x))]), weight, x], x.shape)


def rows(count: int) -> Any:
    return nd.array(RNG.normal(size=(count, 3)))


def gradients(net: Any) -> list[np.ndarray]:
    return [p.grad().asnumpy() for p in net.collect_params().values() if p.grad_req != "null"]


def expected(net: Any, x: Any, scale: float) -> list[np.ndarray]:
    """Return the gradients of the sum of the squares, times a number, operator by operator."""
    with autograd.record():
        total = nd.sum(nd.square(net(x))) * scale
    parameters = [p.data() for p in net.collect_params().values() if p.grad_req != "null"]
    return [each.asnumpy() for each in autograd.grad(total, parameters)]


@pytest.mark.parametrize("head", [None, 0.5])
def test_gradients_are_those_of_autograd_and_outputs_stay(head: float | None) -> None:
    net, graph = make_graph()
    results, weight, executed = [], nd.array([3.0]), 0
    for count in (4, 4, 2, 2, 4, 4, 3, 4):
        x = rows(count)
        means, objective = run(graph, x, weight)
        executed += graph.backward is not None
        if graph.backward is not None:
            graph.backward([None if head is None else nd.array([head])])
        else:
            objective.backward(None if head is None else nd.array([head]))
        results.append((means, nd.sum(nd.square(net(x))).asscalar() / count))
        for one, other in zip(gradients(net), expected(net, x, 3.0 * (head or 1.0))):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
        assert all(p.data()._fresh_grad for p in net.collect_params().values())
    assert executed == 4
    for means, mean in results:
        assert means.asscalar() == pytest.approx(mean, rel=1e-5)


def test_parameters_that_change_are_seen() -> None:
    net, graph = make_graph()
    x, weight = rows(4), nd.array([1.0])
    run(graph, x, weight)
    for of_bias, of_weight, times in (("write", "write", 1), ("write", "add", 3), ("null", "write", 1)):
        net[0].weight.initialize(mx.init.Xavier(), force_reinit=True)
        net[0].weight.grad_req, net[0].bias.grad_req = of_weight, of_bias
        wanted = expected(net, x, 1.0)
        for _ in range(3):
            run(graph, x, weight)
            assert graph.backward is not None
            graph.backward([None])
        for one, other, count in zip(gradients(net), wanted, [times, 1]):
            np.testing.assert_allclose(one, count * other, rtol=1e-5, atol=1e-6)


def test_evaluating_and_first_batches_are_left_to_autograd() -> None:
    _, graph = make_graph()
    x, weight = rows(4), nd.array([1.0])
    run(graph, x, weight)
    assert graph.backward is None
    run(graph, x, weight)
    assert graph.backward is not None
    graph.run([nd.array([4.0]), weight, x], x.shape)
    assert graph.backward is None
    with autograd.record(train_mode=False):
        graph.run([nd.array([4.0]), weight, x], x.shape)
    assert graph.backward is None


@pytest.mark.parametrize("what", ["a large batch", "running statistics", "sparse gradients"])
def test_what_an_executor_does_not_suit(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layers = {
        "a large batch": gluon.nn.Dense(2, in_units=3),
        "running statistics": gluon.nn.BatchNorm(in_channels=3),
        "sparse gradients": gluon.nn.Embedding(4, 2, sparse_grad=True),
    }
    if what == "a large batch":
        monkeypatch.setattr(bound_executor, "MAX_BYTES", 4 * 3 * 4)
    _, graph = make_graph(layers[what])
    for _ in range(3):
        x = nd.abs(rows(4))
        _, objective = run(graph, x, nd.array([1.0]))
        assert graph.backward is None
        objective.backward()


@pytest.mark.parametrize(
    ("devices", "trainers"), [(1, {"every": 2, "accumulate": True}), (2, {"clip_norm": 0.1})], ids=str
)
def test_a_fit_is_the_same_bit_for_bit(
    devices: int, trainers: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    fits = []
    for most in (bound_executor.MAX_BYTES, 0):
        monkeypatch.setattr(bound_executor, "MAX_BYTES", most)
        mx.random.seed(4)
        trainer = TrainerSpec(".*", "adam", {"learning_rate": 0.02}, **trainers)
        net, spec = two_heads("hybridized"), two_head_spec()
        estimator = MultiEstimator(net, spec, trainer, context=[mx.cpu(i) for i in range(devices)])
        history = estimator.fit(in_batches(two_head_arrays(40).values()), epochs=4)
        values = [p.data(mx.cpu(0)).asnumpy() for p in net.collect_params().values()]
        fits.append((values, dict(history)))
    np.testing.assert_equal(*fits)
