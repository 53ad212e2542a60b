"""Graphs whose outputs' gradients reach some parameters only, and graphs that are cut where tasks branch."""

import json
from typing import Any

import numpy as np
import pytest

from multifit.gluon.graph.bound import bound_graph, reaches_any
from multifit.gluon.graph.cut import STOPS, as_json, cut_graph
from tests.common.nets import sequential

import mxnet as mx  # isort: skip
from mxnet import autograd, nd, sym  # isort: skip
from mxnet.gluon import nn, rnn  # isort: skip


PARAMETERS = {"a": (4, 3), "b": (4, 4), "c": (1, 4), "mean": (4,), "variance": (4,)}
TRAINED = {"a", "b", "c"}
ALL = frozenset(TRAINED)


def graph(dropout: float = 0.0) -> Any:
    """Return a score of x, a score of what is made of z, that score once more, and what has no gradient."""
    x, z, a, b, c, mean, variance = map(sym.var, ("x", "z", *PARAMETERS))

    def score(features: Any) -> Any:
        hidden = sym.tanh(sym.dot(features, b, transpose_b=True))
        hidden = sym.BatchNorm(
            hidden, sym.ones_like(mean), sym.zeros_like(mean), mean, variance, fix_gamma=False
        )
        hidden = sym.Dropout(hidden, p=dropout) if dropout else hidden
        return sym.sum(sym.square(sym.dot(hidden, c, transpose_b=True)))

    made = sym.tanh(sym.dot(z, a, transpose_b=True))
    of_made = score(made)
    return sym.Group([score(x), of_made, of_made * 3, sym.sum(sym.BlockGrad(made))])


def arrays() -> dict[str, Any]:
    random = np.random.RandomState(0)
    shapes = {"x": (6, 4), "z": (6, 3), **PARAMETERS}
    values = {name: nd.array(random.rand(*shape)) for name, shape in shapes.items()}
    for name in TRAINED:
        values[name].attach_grad()
    return values


def passed_back(symbol: Any, *heads: int) -> tuple[list[float], dict[str, np.ndarray]]:
    """Return the outputs, and the gradients of the sum of some of them."""
    values = arrays()
    with autograd.record():
        names = symbol.list_inputs()
        outputs = mx.nd.CachedOp(symbol, ())(*[values[name] for name in names])
    mx.random.seed(1)
    autograd.backward([outputs[head] for head in heads])
    return [output.asscalar() for output in outputs], {name: values[name].grad.asnumpy() for name in TRAINED}


GROUPS = {
    "one each": (frozenset("bc"), frozenset("bc"), frozenset("a"), ALL),
    "overlapping": (frozenset("c"), frozenset("ac"), frozenset("ab"), ALL),
    "all": (ALL, ALL, ALL, ALL),
    "one reaches all": (ALL, frozenset("a"), frozenset("a"), ALL),
    "of no use": (frozenset("b"), frozenset(), frozenset("c"), ALL),
}


@pytest.mark.parametrize("reaches", GROUPS.values(), ids=GROUPS)
def test_gradients_are_those_of_the_parameters_that_are_named(reaches: Any) -> None:
    whole, bound = graph(), bound_graph(graph(), reaches, TRAINED)
    assert sorted(set(bound.list_arguments())) == sorted(set(whole.list_arguments()))
    values, got = passed_back(bound, 0, 1, 2)
    expected = {name: np.zeros_like(gradient) for name, gradient in got.items()}
    for head in (0, 1, 2):
        outputs, gradients = passed_back(whole, head)
        assert values == pytest.approx(outputs, rel=1e-6)
        for name in reaches[head]:
            expected[name] += gradients[name]
    for name, gradient in got.items():
        np.testing.assert_allclose(gradient, expected[name], rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(("group", "times"), [("all", 2), ("one each", 3), ("one reaches all", 2)])
def test_what_need_not_be_computed_again_is_not(group: str, times: int) -> None:
    nodes = json.loads(bound_graph(graph(), GROUPS[group], TRAINED).tojson())["nodes"]
    assert sum(node["op"] == "BatchNorm" for node in nodes) == times
    assert sum(node["name"] == "a" for node in nodes) == 1


SHARED = nn.Dense(3, in_units=3, activation="tanh")
LAYERS = {
    "dense": (nn.Dense(4, in_units=6), (5, 2, 3)),
    "dense, twice": (sequential(SHARED, SHARED), (5, 3)),
    "convolution": (nn.Conv2D(4, 3, in_channels=2), (2, 2, 5, 5)),
    "batch norm": (nn.BatchNorm(in_channels=3), (6, 3, 2)),
    "layer norm": (nn.LayerNorm(in_channels=3), (6, 3)),
    "lstm": (rnn.LSTM(4, 2, input_size=3), (5, 2, 3)),
    "gru": (rnn.GRU(4, bidirectional=True, input_size=3), (5, 2, 3)),
}


@pytest.mark.parametrize("ends", [("bias", "beta"), ("weight", "gamma")], ids=["biases", "weights"])
@pytest.mark.parametrize(("layer", "shape"), LAYERS.values(), ids=LAYERS)
def test_a_part_of_a_layer_learns_as_all_of_it(layer: Any, shape: Any, ends: tuple[str, str]) -> None:
    """Some operators of MXNet compute one gradient only along with another."""
    parameters = layer.collect_params()
    trained = {name for name, parameter in parameters.items() if parameter.grad_req != "null"}
    some = frozenset(name for name in trained if name.endswith(ends))
    symbol = sym.sum(sym.square(layer(sym.var("x", shape=shape)) + 0.3))
    symbols = symbol, bound_graph(symbol, [some], trained)
    random = np.random.RandomState(0)
    values = {name: nd.array(random.rand(*(each.shape or shape))) for name, each in parameters.items()}
    values["x"] = nd.array(random.rand(*shape))
    results = []
    for each in symbols:
        gradients = {name: nd.full(values[name].shape, np.nan) for name in trained}
        arguments = {name: values[name] for name in each.list_arguments()}
        states = {name: values[name].copy() for name in each.list_auxiliary_states()}
        executor = each.bind(mx.cpu(), arguments, gradients, "write", states)
        output = executor.forward(is_train=True)[0].asscalar()
        executor.backward(nd.ones(1))
        results.append({"": output, **{name: gradient.asnumpy() for name, gradient in gradients.items()}})
    for name, whole in results[0].items():
        expected = np.zeros_like(whole) if name in trained - some else whole
        np.testing.assert_allclose(results[1][name], expected, rtol=1e-5, atol=1e-5, err_msg=name)


def test_dropout_is_passed_back_as_it_was_computed() -> None:
    """The output is a square form of "c": its value is half the product with the gradient."""
    bound = bound_graph(graph(0.5), (frozenset("b"), frozenset("c"), frozenset("a"), ALL), TRAINED)
    values, gradients = passed_back(bound, 0, 1, 2)
    c = arrays()["c"].asnumpy()
    assert (gradients["c"] * c).sum() / 2 == pytest.approx(values[1], rel=1e-5)


OPERATORS = {
    **{name: {} for name in sorted(STOPS - {"_zeros", "_ones"})},  # these take nothing
    "one_hot": {"depth": 3},
    "sort": {"axis": 1},
    "tanh": {},
    "topk": {"k": 2},
    "topk of values": {"k": 2, "ret_typ": "value"},
    "topk of indices": {"k": 2, "ret_typ": "indices"},
    "topk of a mask": {"k": 2, "ret_typ": "mask"},
    "topk of both": {"k": 2, "ret_typ": "both"},
}


@pytest.mark.parametrize("name", OPERATORS)
def test_a_gradient_reaches_what_mxnet_passes_it_to(name: str) -> None:
    symbol = getattr(sym, name.split()[0])(sym.var("a"), **OPERATORS[name])[0]
    value = nd.array(np.random.RandomState(0).rand(4, 3))
    value.attach_grad()
    with autograd.record():
        output = mx.nd.CachedOp(symbol, ())(value)
    output.backward()
    assert reaches_any(symbol, [frozenset("a")]) == [bool(value.grad.asnumpy().any())]


def test_body_and_rest_compute_what_the_graph_computes() -> None:
    image, weight, own = map(mx.sym.var, ("x", "shared", "own"))
    features = mx.sym.FullyConnected(image, weight, num_hidden=3, no_bias=True)
    first = mx.sym.sum(mx.sym.tanh(features), axis=1)
    second = mx.sym.sum(mx.sym.FullyConnected(features, own, num_hidden=2, no_bias=True), axis=1)
    symbol = mx.sym.Group([mx.sym.BlockGrad(features), first, second])
    cut = cut_graph(as_json(symbol), [None, 0, 1], {"shared", "own"})
    assert cut is not None and cut.shared == ["shared"]
    shapes = {"x": (4, 5), "shared": (3, 5), "own": (2, 3)}
    arrays = {name: mx.nd.array(np.random.rand(*shape)) for name, shape in shapes.items()}
    (taken,) = cut.copies
    assert {0, 1} <= set(taken) and set(taken.values()) == set(cut.rest.list_inputs()) - {"own"}
    (parted,) = cut.body.eval(**{name: arrays[name] for name in cut.body.list_inputs()})
    own_inputs = {name: arrays.get(name, parted) for name in cut.rest.list_inputs()}
    for value, expected in zip(cut.rest.eval(**own_inputs), symbol.eval(**arrays)):
        np.testing.assert_array_equal(value.asnumpy(), expected.asnumpy())
