"""Graphs with operators whose gradients MXNet computes wrongly have the gradients of the formulas."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

from multifit.gluon.graph.repair import SELU_ALPHA, SELU_SCALE, correct_gradients
from tests.common.random_graphs import SHAPE, Graph

from .graphs import TRAINED, Values, by_operators, computed, random_graphs

import mxnet as mx  # isort: skip
from mxnet import nd  # isort: skip

PLANS: dict[str, Any] = {"dynamic": (), "static": (("static_alloc", True), ("static_shape", True))}
WAYS = (("write", 1), ("add", 2))


def by_executor(symbol: Any, values: Values, how: str) -> dict[str, np.ndarray]:
    """Return the gradients after two passes."""
    names = symbol.list_inputs()
    gradients = {name: nd.zeros(SHAPE) for name in TRAINED}
    requests = {name: how if name in TRAINED else "null" for name in names}
    arrays = {name: nd.array(values[name]) for name in names}
    used = {name: gradients[name] for name in TRAINED if name in names}
    executor = symbol.bind(mx.cpu(), arrays, used, requests)
    for _ in range(2):
        executor.forward(is_train=True)
        executor.backward([nd.ones((1,))])
    return {name: gradient.asnumpy() for name, gradient in gradients.items()}


def assert_repaired(graph: Any, formula: Any, values: Values, where: str) -> None:
    """Check the gradients of a graph, however it runs, against those of a formula, operator by operator."""
    symbol = correct_gradients(graph(mx.sym, [mx.sym.var(name) for name in values])[0], TRAINED)
    _, (expected,) = by_operators(formula, values)
    for how, times in WAYS:
        found = {
            name: computed(symbol, values, plan=plan, how=how, passes=2)[1] for name, plan in PLANS.items()
        }
        found["executor"] = by_executor(symbol, values, how)
        for run, gradients in found.items():
            for name, gradient in gradients.items():
                message = f"{where}, {how}, {run}, {name}"
                np.testing.assert_allclose(gradient, times * expected[name], 1e-4, 1e-5, err_msg=message)


def objective(graph: Graph, F: Any, variables: Sequence[Any]) -> list[Any]:
    return [F.sum(F.sin(graph(F, variables)[-1]))]


@pytest.mark.parametrize("first", range(0, 40, 20))
def test_gradients_are_those_of_the_operators(first: int) -> None:
    for seed, graph, values in random_graphs(20, first):
        function = partial(objective, graph)
        assert_repaired(function, function, values, f"seed {seed}")


Formula = Callable[[Any, Any, Any, Any], Any]


def prelu(slopes: int) -> tuple[Formula, Formula]:
    def row(F: Any, other: Any) -> Any:
        return F.slice_axis(F.slice_axis(other, 0, 0, 1), 1, 0, slopes)

    return (
        lambda F, one, other, x: F.LeakyReLU(one, F.reshape(row(F, other), (-1,)), act_type="prelu"),
        lambda F, one, other, x: F.relu(one) - F.broadcast_mul(F.relu(-one), row(F, other)),
    )


def same(function: Formula) -> tuple[Formula, Formula]:
    return function, function


# As MXNet's operators, and as a formula whose gradient is right operator by operator: of F and three arrays.
OPERATORS: dict[str, tuple[Formula, Formula]] = {
    "prelu": prelu(4),
    "prelu of one slope": prelu(1),
    "selu": (
        lambda F, one, other, x: F.LeakyReLU(one + other, act_type="selu"),
        lambda F, one, other, x: SELU_SCALE
        * F.where(one + other > 0, one + other, SELU_ALPHA * (F.exp(F.minimum(one + other, 0)) - 1)),
    ),
    "hard_sigmoid": (
        lambda F, one, other, x: F.hard_sigmoid(one * other) + one,
        lambda F, one, other, x: F.clip(0.2 * one * other + 0.5, 0, 1) + one,
    ),
    # these are wrong only where gradients accumulate, or where an input takes part that has none
    "moments": same(
        lambda F, one, other, x: F.broadcast_mul(F.moments(one, axes=0, keepdims=True)[0], other)
    ),
    "linalg": same(lambda F, one, other, x: F.linalg.trmm(one, other)),
    "sum of both": same(lambda F, one, other, x: F.clip(one + other, -1, 1)),
    "an input is added": same(lambda F, one, other, x: F.tanh(x + one) * other),
    "an input is added last": same(lambda F, one, other, x: F.dot(one, other) + x),
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATORS)
def test_gradients_are_those_of_the_formula(name: str) -> None:
    random = np.random.RandomState(0)
    values = {each: random.normal(size=SHAPE) for each in ("one", "other", "x")}
    operator, formula = (
        lambda F, variables, function=function: [F.sum(function(F, *variables))]
        for function in OPERATORS[name]
    )
    assert_repaired(operator, formula, values, name)


def test_other_graphs_stay_what_they_are() -> None:
    graph = mx.sym.LeakyReLU(mx.sym.relu(mx.sym.var("x")), act_type="elu")
    assert correct_gradients(graph) is graph


@pytest.mark.parametrize("kind", ["avg", "max"])
def test_global_pooling_behind_a_reshape_is_the_same(kind: str) -> None:
    """Bit for bit, gradients too; only images need the reshape."""
    maps = mx.sym.Convolution(mx.sym.var("x"), mx.sym.var("w"), kernel=(3, 3), num_filter=8, no_bias=True)
    pooled = mx.sym.Pooling(mx.sym.relu(maps), global_pool=True, pool_type=kind, kernel=(1, 1))
    corrected = correct_gradients(pooled, ["x", "w"])
    values = {"x": np.random.randn(4, 3, 9, 9), "w": np.random.randn(8, 3, 3, 3)}
    np.testing.assert_equal(computed(corrected, values, values), computed(pooled, values, values))
    assert "Reshape" in corrected.tojson()
    rows = mx.sym.Pooling(mx.sym.var("x"), global_pool=True, pool_type=kind, kernel=(1,))
    assert correct_gradients(rows, ["x"]) is rows
