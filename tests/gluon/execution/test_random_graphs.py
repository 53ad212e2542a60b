"""Random graphs of operators: every way in which MXNet runs a corrected graph gives the same gradients."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Sequence

import numpy as np
import pytest

import multifit  # noqa: F401  (before mxnet: Python 3.12 needs that)
from multifit.gluon.execution.correct_gradients import correct_gradients

import mxnet as mx  # isort: skip
from mxnet import autograd, nd  # isort: skip

SHAPE = (4, 4)
PARAMETERS, INPUTS = ("one", "other"), ("x", "z")
PLANS: dict[str, Any] = {
    "dynamic": (),
    "memory": (("static_alloc", True),),
    "shapes": (("static_alloc", True), ("static_shape", True)),
}
OPERATORS: list[tuple[int, Callable[..., Any]]] = [  # with their numbers of arguments, all of one shape
    (1, lambda F, x: F.relu(x)),
    (1, lambda F, x: F.tanh(x)),
    (1, lambda F, x: F.identity(x)),
    (1, lambda F, x: F.transpose(x)),
    (1, lambda F, x: F.reshape(F.reshape(x, (2, 8)), SHAPE)),
    (1, lambda F, x: F.softmax(x)),
    (1, lambda F, x: F.clip(x, -0.5, 0.7)),
    (1, lambda F, x: F.hard_sigmoid(x)),
    (1, lambda F, x: F.flip(x, axis=1)),
    (1, lambda F, x: F.cumsum(x, axis=1) * 0.5),
    (1, lambda F, x: F.broadcast_like(F.mean(x, axis=1, keepdims=True), x)),
    (1, lambda F, x: F.concat(*list(F.split(x, 2, axis=1))[::-1], dim=1)),
    (2, lambda F, x, y: F.elemwise_add(x, y)),
    (2, lambda F, x, y: F.elemwise_add(x, y)),
    (2, lambda F, x, y: F.elemwise_add(x, y)),
    (2, lambda F, x, y: x - y),
    (2, lambda F, x, y: x * y),
    (2, lambda F, x, y: F.broadcast_add(x, y)),
    (2, lambda F, x, y: F.add_n(x, y, x)),
    (2, lambda F, x, y: F.dot(x, y) * 0.5),
    (2, lambda F, x, y: F.FullyConnected(x, y, num_hidden=4, no_bias=True) * 0.5),
    (2, lambda F, x, y: F.LeakyReLU(x, F.reshape(F.slice_axis(y, 0, 0, 1), (-1,)), act_type="prelu")),
]


class Graph(NamedTuple):
    """Operators, each with the numbers of its arguments among the variables and the results before."""

    operators: Sequence[Callable[..., Any]]
    arguments: Sequence[tuple[int, ...]]

    def __call__(self, F: Any, variables: Sequence[Any]) -> Any:
        values = list(variables)
        for operator, arguments in zip(self.operators, self.arguments):
            values.append(operator(F, *[values[i] for i in arguments]))
        return F.sum(F.sin(values[-1]))


def random_graph(random: np.random.RandomState) -> Graph:
    count = len(PARAMETERS + INPUTS)
    chosen = [OPERATORS[i] for i in random.randint(len(OPERATORS), size=random.randint(2, 9))]
    arguments = [
        tuple(random.randint(count + place, size=number)) for place, (number, _) in enumerate(chosen)
    ]
    return Graph([operator for _, operator in chosen], arguments)


def by_cached_op(symbol: Any, arrays: dict[str, Any], grad_req: str, plan: Any) -> dict[str, np.ndarray]:
    """Return the parameters' gradients after two passes."""
    names = symbol.list_inputs()
    operator = nd.CachedOp(symbol, plan)
    for name in PARAMETERS:
        arrays[name].attach_grad(grad_req)
    for _ in range(2):
        with autograd.record():
            result = operator(*[arrays[name] for name in names])
        result.backward()
    return {name: arrays[name].grad.asnumpy() for name in PARAMETERS}


def by_executor(symbol: Any, arrays: dict[str, Any], grad_req: str) -> dict[str, np.ndarray]:
    names = symbol.list_inputs()
    gradients = {name: nd.zeros(SHAPE) for name in PARAMETERS}
    reqs = {name: grad_req if name in PARAMETERS else "null" for name in names}
    used = {name: gradients[name] for name in PARAMETERS if name in names}
    executor = symbol.bind(mx.cpu(), {name: arrays[name] for name in names}, used, reqs)
    for _ in range(2):
        executor.forward(is_train=True)
        executor.backward([nd.ones((1,))])
    return {name: gradient.asnumpy() for name, gradient in gradients.items()}


def gradients_of(graph: Graph, arrays: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return the parameters' gradients, operator by operator."""
    for name in PARAMETERS:
        arrays[name].attach_grad()
    with autograd.record():
        result = graph(nd, list(arrays.values()))
    result.backward()
    return {name: arrays[name].grad.asnumpy() for name in PARAMETERS}


@pytest.mark.parametrize("start", range(0, 200, 20))
def test_gradients_are_those_of_the_operators(start: int) -> None:
    checked = 0
    for seed in range(start, start + 20):
        random = np.random.RandomState(seed)
        graph = random_graph(random)
        arrays = {name: nd.array(random.normal(size=SHAPE)) for name in PARAMETERS + INPUTS}
        symbol = graph(mx.sym, [mx.sym.var(name) for name in arrays])
        if not set(PARAMETERS) & set(symbol.list_inputs()):
            continue
        once, symbol = gradients_of(graph, arrays), correct_gradients(symbol, PARAMETERS)
        for grad_req, times in (("write", 1), ("add", 2)):
            results = {name: by_cached_op(symbol, arrays, grad_req, plan) for name, plan in PLANS.items()}
            results["executor"] = by_executor(symbol, arrays, grad_req)
            for run, gradients in results.items():
                for name, gradient in gradients.items():
                    where = f"seed {seed}, {grad_req}, {run}, {name}"
                    expected = times * once[name]
                    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-5, err_msg=where)
        checked += 1
    assert checked > 5
