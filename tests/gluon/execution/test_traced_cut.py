"""A traced graph that another engine cuts where its tasks branch computes in two what it computed in one."""

import numpy as np

from multifit.gluon.compat import mx
from multifit.gluon.execution.graph_cut import TracedGraph, as_json, cut_traced


def test_body_and_rest_compute_what_the_graph_computes() -> None:
    image, weight, own = map(mx.sym.var, ("x", "shared", "own"))
    features = mx.sym.FullyConnected(image, weight, num_hidden=3, no_bias=True)
    first = mx.sym.sum(mx.sym.tanh(features), axis=1)
    second = mx.sym.sum(mx.sym.FullyConnected(features, own, num_hidden=2, no_bias=True), axis=1)
    symbol = mx.sym.Group([mx.sym.BlockGrad(features), first, second])
    outputs = "output.y", "objective.a", "objective.b"
    cut = cut_traced(
        TracedGraph(as_json(symbol), {"x": "image"}, outputs), {"a": 0, "b": 1}, {"shared", "own"}
    )

    shapes = {"x": (4, 5), "shared": (3, 5), "own": (2, 3)}
    arrays = {name: mx.nd.array(np.random.rand(*shape)) for name, shape in shapes.items()}
    body, rest = (mx.sym.load_json(part.symbol) for part in (cut.body, cut.rest))
    assert cut.body.inputs == {"x": "image"} and cut.body.outputs == ("0",) and cut.rest.outputs == outputs
    (taken,) = cut.copies
    assert {0, 1} <= set(taken) and set(taken.values()) == set(cut.rest.inputs)
    (parted,) = body.eval(**{name: arrays[name] for name in body.list_inputs()})
    own_inputs = {name: arrays.get(name, parted) for name in rest.list_inputs()}
    for value, expected in zip(rest.eval(**own_inputs), symbol.eval(**arrays)):
        np.testing.assert_array_equal(value.asnumpy(), expected.asnumpy())
