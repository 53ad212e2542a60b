"""Random graphs of operators: every way in which MXNet runs a corrected graph gives the same gradients."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import multifit  # noqa: F401  (before mxnet: Python 3.12 needs that)
from multifit.gluon.execution.correct_gradients import correct_gradients
from tests.common.random_graphs import SHAPE, Graph, random_graph

import mxnet as mx  # isort: skip
from mxnet import autograd, nd  # isort: skip

PARAMETERS, INPUTS = ("one", "other"), ("x", "z")
PLANS: dict[str, Any] = {
    "dynamic": (),
    "memory": (("static_alloc", True),),
    "shapes": (("static_alloc", True), ("static_shape", True)),
}


def objective(graph: Graph, F: Any, variables: Sequence[Any]) -> Any:
    return F.sum(F.sin(graph(F, variables)[-1]))


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
        result = objective(graph, nd, list(arrays.values()))
    result.backward()
    return {name: arrays[name].grad.asnumpy() for name in PARAMETERS}


@pytest.mark.parametrize("start", range(0, 120, 20))
def test_gradients_are_those_of_the_operators(start: int) -> None:
    checked = 0
    for seed in range(start, start + 20):
        random = np.random.RandomState(seed)
        graph = random_graph(random, len(PARAMETERS + INPUTS))
        arrays = {name: nd.array(random.normal(size=SHAPE)) for name in PARAMETERS + INPUTS}
        symbol = objective(graph, mx.sym, [mx.sym.var(name) for name in arrays])
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
