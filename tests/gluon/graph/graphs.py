"""Random graphs of two parameters and two inputs, and what graphs compute."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tests.common.random_graphs import SHAPE, Graph, random_graph

import mxnet as mx  # isort: skip
from mxnet import autograd, nd  # isort: skip

TRAINED = {"one", "other"}
Values = Mapping[str, np.ndarray]


def random_graphs(count: int, first: int = 0) -> Iterator[tuple[int, Graph, Values]]:
    """Yield seeds, graphs, and values of the variables."""
    for seed in range(first, first + count):
        random = np.random.RandomState(seed)
        graph = random_graph(random, 4)
        yield seed, graph, {name: random.normal(size=SHAPE) for name in ("one", "other", "x", "z")}


def computed(
    symbol: Any,
    values: Values,
    trained: Collection[str] = TRAINED,
    heads: Sequence[int] = (0,),
    plan: Any = (),
    how: str = "write",
    passes: int = 1,
) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
    """Return a graph's outputs, and the gradients of the sum of some of them, after some passes."""
    arrays = {name: nd.array(values[name]) for name in symbol.list_inputs()}
    learning = [name for name in arrays if name in trained]
    for name in learning:
        arrays[name].attach_grad(how)
    operator = nd.CachedOp(symbol, plan)
    for _ in range(passes):
        with autograd.record():
            outputs = operator(*arrays.values())
        outputs = outputs if isinstance(outputs, list) else [outputs]
        mx.random.seed(1)
        if learning:
            autograd.backward([outputs[head] for head in heads])
    gradients = {name: np.zeros(np.shape(values[name])) for name in trained}
    return [output.asnumpy() for output in outputs], {
        **gradients,
        **{name: arrays[name].grad.asnumpy() for name in learning},
    }


def by_operators(function: Any, values: Values) -> tuple[list[np.ndarray], list[dict[str, np.ndarray]]]:
    """Return the results of ``function(F, variables)``, and the gradients of each, operator by operator."""
    arrays = {name: nd.array(value) for name, value in values.items()}
    for name in TRAINED:
        arrays[name].attach_grad()
    with autograd.record():
        nothing = 0 * sum(arrays[name].sum() for name in TRAINED)  # has a gradient
        results = [result + nothing for result in function(nd, list(arrays.values()))]
    gradients = []
    for result in results:
        for name in TRAINED:
            arrays[name].grad[:] = 0
        result.backward(retain_graph=True)
        gradients.append({name: arrays[name].grad.asnumpy() for name in TRAINED})
    return [result.asnumpy() for result in results], gradients
