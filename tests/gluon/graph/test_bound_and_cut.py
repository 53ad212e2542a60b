"""Graphs whose outputs' gradients reach some parameters only, and graphs that are cut where tasks branch."""

import json
from typing import Any

import numpy as np
import pytest

from multifit.gluon.graph.bound import bound_graph, reaches_any
from multifit.gluon.graph.cut import STOPS, as_json, cut_graph
from multifit.gluon.graph.repair import correct_gradients
from tests.common.nets import sequential
from tests.common.random_graphs import Graph

from .graphs import TRAINED, by_operators, computed, random_graphs

from mxnet import autograd, nd, sym  # isort: skip
from mxnet.gluon import nn, rnn  # isort: skip

ALL = frozenset(TRAINED)


def outputs_of(graph: Graph, heads: Any) -> Any:
    """Return the function of a graph that sums up some of its results, each by itself."""
    return lambda F, variables: [F.sum(F.sin(graph(F, variables)[head])) for head in heads]


def test_gradients_of_a_bound_graph_are_those_of_the_parameters_that_are_named() -> None:
    for seed, graph, values in random_graphs(40):
        random = np.random.RandomState(seed)
        outputs = outputs_of(graph, random.randint(4, 4 + len(graph.operators), 3))
        reaches = [frozenset(name for name in TRAINED if random.rand() < 0.6) for _ in range(3)]
        symbol = sym.Group(outputs(sym, [sym.var(name) for name in values]))
        bound = bound_graph(symbol, reaches, TRAINED)
        assert sorted(set(bound.list_inputs())) == sorted(set(symbol.list_inputs()))
        results, gradients = by_operators(outputs, values)
        found, got = computed(correct_gradients(bound, TRAINED), values, heads=(0, 1, 2))
        np.testing.assert_allclose(found, results, rtol=1e-4, atol=1e-5, err_msg=f"seed {seed}")
        for name, gradient in got.items():
            expected = sum(each[name] for each, names in zip(gradients, reaches) if name in names)
            np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-5, err_msg=f"{seed}, {name}")
        for reached, each, names in zip(reaches_any(symbol, reaches), gradients, reaches):
            assert reached or not any(each[name].any() for name in names)


def test_body_and_rest_of_a_cut_graph_compute_what_the_graph_computes() -> None:
    shared = set()
    for seed, graph, values in random_graphs(40):
        heads = np.random.RandomState(seed).randint(4, 4 + len(graph.operators), 3)
        outputs = outputs_of(graph, heads)
        symbol = sym.Group(outputs(sym, [sym.var(name) for name in values]))
        cut = cut_graph(as_json(symbol), [None, 0, 1], TRAINED)
        both = TRAINED & set(symbol[1].list_inputs()) & set(symbol[2].list_inputs())
        assert both == set(cut.shared if cut else ())
        if cut is None:
            continue
        results, _ = by_operators(outputs, values)
        arrays = {name: nd.array(value) for name, value in values.items()}
        features = cut.body.eval(**{name: arrays[name] for name in cut.body.list_inputs()})
        for variables, feature in zip(cut.copies, features):
            arrays.update(dict.fromkeys(variables.values(), feature))
        found = cut.rest.eval(**{name: arrays[name] for name in cut.rest.list_inputs()})
        for value, expected in zip(found, results):
            np.testing.assert_allclose(value.asnumpy(), expected, rtol=1e-4, atol=1e-5, err_msg=str(seed))
        shared.add(len(cut.shared))
    assert shared == {1, 2}


def two_scores(dropout: float = 0.0) -> Any:
    """Return two numbers that are computed from one product."""
    x, one, other = sym.var("x"), sym.var("one"), sym.var("other")
    product = sym.dot(sym.Dropout(sym.dot(x, one), p=dropout), other)
    return sym.Group([sym.sum(sym.square(sym.softmax(product))), sym.sum(sym.square(product))])


ONE, OTHER, NONE = frozenset({"one"}), frozenset({"other"}), frozenset[str]()


@pytest.mark.parametrize(
    ("reaches", "products"), [([ALL, ALL], 2), ([ONE, OTHER], 3), ([ALL, OTHER], 3), ([NONE, ALL], 2)]
)
def test_what_need_not_be_computed_again_is_not(reaches: Any, products: int) -> None:
    nodes = json.loads(bound_graph(two_scores(), reaches, TRAINED).tojson())["nodes"]
    assert sum(node["op"] == "dot" for node in nodes) == products
    assert sum(node["name"] == "one" for node in nodes) == 1


def test_dropout_is_passed_back_as_it_was_computed() -> None:
    """The second output is a square form of "other": its value is half the product with the gradient."""
    bound = bound_graph(two_scores(0.5), [ONE, OTHER], TRAINED)
    values = {name: np.random.randn(4, 4) for name in ("x", "one", "other")}
    outputs, gradients = computed(bound, values, heads=(0, 1))
    assert (gradients["other"] * values["other"]).sum() / 2 == pytest.approx(outputs[1], rel=1e-5)


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
    values = {name: np.random.rand(*(each.shape or shape)) for name, each in parameters.items()}
    values["x"] = np.random.rand(*shape)
    output, gradients = computed(symbol, values, trained)
    found, got = computed(bound_graph(symbol, [some], trained), values, trained)
    np.testing.assert_allclose(found, output, rtol=1e-5, atol=1e-5)
    for name, whole in gradients.items():
        expected = whole if name in some else np.zeros_like(whole)
        np.testing.assert_allclose(got[name], expected, rtol=1e-5, atol=1e-5, err_msg=name)


OPERATORS = {
    **{name: {} for name in sorted(STOPS - {"_zeros", "_ones"})},  # these take nothing
    "one_hot": {"depth": 3},
    "sort": {"axis": 1},
    "tanh": {},
    "topk": {"k": 2},
    **{f"topk of {kind}": {"k": 2, "ret_typ": kind} for kind in ("value", "indices", "mask", "both")},
}


def test_a_gradient_reaches_what_mxnet_passes_it_to() -> None:
    for name, options in OPERATORS.items():
        symbol = getattr(sym, name.split()[0])(sym.var("a"), **options)[0]
        value = nd.array(np.random.rand(4, 3))
        value.attach_grad()
        with autograd.record():
            output = nd.CachedOp(symbol, ())(value)
        output.backward()
        assert reaches_any(symbol, [frozenset("a")]) == [bool(value.grad.asnumpy().any())], name
