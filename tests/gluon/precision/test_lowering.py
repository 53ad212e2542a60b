"""A lowered graph computes its products in bfloat16, all else in float32, and is of the same variables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from multifit.gluon.precision.lowering import lower
from multifit.gluon.precision.precision import PRECISIONS

import mxnet as mx  # isort: skip

F = mx.sym
RULES = PRECISIONS["bfloat16"].rules
assert RULES is not None
# bfloat16 keeps 8 bits of a number: rounding it to the nearest is wrong by 2^-9 of it at most
ROUNDING = 2.0**-9


def dtypes(symbol: Any) -> dict[str, str]:
    """Return the dtype of every operator's output, as MXNet infers it; parameters are float32."""
    inner = symbol.get_internals()
    found = inner.infer_type(**dict.fromkeys(symbol.list_inputs(), "float32"))[1]
    kinds = [np.dtype(kind) for kind in found]
    return {name: "bfloat16" if kind.names else kind.name for name, kind in zip(inner.list_outputs(), kinds)}


def run(symbol: Any, arrays: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return what a graph gives, and the gradients of its sum."""
    given = {name: mx.nd.array(arrays[name]) for name in symbol.list_inputs()}
    for array in given.values():
        array.attach_grad()
    with mx.autograd.record():
        result = mx.nd.CachedOp(symbol)(*given.values())
    result.backward()
    return result, {name: array.grad for name, array in given.items()}


def dense(data: Any, name: str, size: int = 4) -> Any:
    return F.FullyConnected(data, num_hidden=size, name=name)


@pytest.fixture
def chain() -> Any:
    """A product, a layer that keeps its precision, and one that needs float32."""
    return F.log_softmax(F.Activation(dense(F.var("x"), "fc"), act_type="relu", name="act"), name="soft")


@pytest.fixture
def arrays() -> dict[str, Any]:
    random = np.random.RandomState(0)
    return {"x": random.randn(8, 6), "fc_weight": random.randn(4, 6), "fc_bias": random.randn(4)}


def test_only_products_and_what_is_between_are_lowered(chain):
    (lowered,), count = lower([chain], "bfloat16", RULES)
    found = dtypes(lowered)
    assert (found["fc_output"], found["act_output"], found["soft_output"]) == (
        "bfloat16", "bfloat16", "float32",
    )  # fmt: skip
    assert count == 2 and found["x"] == found["fc_weight"] == "float32"
    assert lowered.list_inputs() == chain.list_inputs() and lowered.list_outputs() == chain.list_outputs()


def test_values_and_gradients_are_those_of_float32_but_for_the_rounding(chain, arrays):
    (lowered,), _ = lower([chain], "bfloat16", RULES)
    expected, gradients = run(chain, arrays)
    found, own = run(lowered, arrays)
    assert found.dtype == np.float32 and all(g.dtype == np.float32 for g in own.values())
    # what goes into the product, what comes out of it and what its activation gives are rounded: 4 at most,
    # each of numbers that are no larger than the products' absolute sum
    scale = np.abs(arrays["x"]) @ np.abs(arrays["fc_weight"].T) + np.abs(arrays["fc_bias"])
    difference = np.abs((found - expected).asnumpy())
    assert 0 < difference.max() < 2 * 4 * ROUNDING * scale.max()  # log_softmax subtracts two of them
    for name, gradient in gradients.items():
        error = np.linalg.norm((own[name] - gradient).asnumpy())
        assert error < 16 * ROUNDING * np.linalg.norm(gradient.asnumpy()), name


def test_what_is_no_product_stays_bit_by_bit():
    graph = F.softmax(F.var("x")) * 3 + 1
    (lowered,), count = lower([graph], "bfloat16", RULES)
    x = {"x": np.random.RandomState(0).randn(5, 4)}
    assert count == 0 and lowered.tojson(remove_amp_cast=False) == graph.tojson(remove_amp_cast=False)
    assert (run(lowered, x)[0].asnumpy() == run(graph, x)[0].asnumpy()).all()


@pytest.mark.parametrize(
    "behind",
    [
        lambda a, b: F.dot(a, b, transpose_b=True),
        lambda a, b: F.broadcast_add(a, b),
        lambda a, b: F.Activation(a, act_type="softrelu") + b,
        lambda a, b: F.LeakyReLU(a, act_type="elu") + b,
        lambda a, b: F.LeakyReLU(a, F.var("slope", shape=(4,)), act_type="prelu") + b,
        lambda a, b: F.concat(a, b * 2, dim=1),
        lambda a, b: F.cumsum(a, axis=1) + b,
    ],
    ids=["dot", "broadcast", "softrelu", "elu", "prelu", "mixed", "in no list"],
)
def test_operators_without_a_kernel_get_float32(behind, arrays):
    """Dot fails in bfloat16, most of the others take ten times as long."""
    x = F.var("x")
    graph = behind(dense(x, "fc"), dense(x, "fd"))
    (lowered,), count = lower([graph], "bfloat16", RULES)
    found = dtypes(lowered)
    assert count == 2 and [name for name, kind in found.items() if kind == "bfloat16" and "fc_" in name]
    values = {**arrays, "fd_weight": arrays["fc_weight"], "fd_bias": arrays["fc_bias"], "slope": np.ones(4)}
    (expected, _), (result, _) = (run(each, values) for each in (graph, lowered))
    np.testing.assert_allclose(result.asnumpy(), expected.asnumpy(), rtol=8 * ROUNDING, atol=64 * ROUNDING)


def test_layers_between_products_need_no_casts():
    x = F.Convolution(F.var("x"), kernel=(3, 3), num_filter=4, pad=(1, 1), name="conv")
    y = F.Activation(F.BatchNorm(x, name="norm", fix_gamma=False), act_type="relu", name="act")
    halves = [F.Pooling(each, kernel=(2, 2), stride=(2, 2)) for each in (x + y, y)]
    joined = F.concat(*halves, dim=1, name="join")
    graph = F.Convolution(joined, kernel=(1, 1), num_filter=2, name="end")
    (lowered,), count = lower([graph], "bfloat16", RULES)
    found = dtypes(lowered)
    for name in ("conv", "norm", "act", "join", "end"):
        assert found[f"{name}_output"] == "bfloat16"
    assert found["norm_gamma"] == found["norm_moving_mean"] == "float32"
    assert count == 8 and lowered.list_auxiliary_states() == graph.list_auxiliary_states()
    nodes = [name for name in found if "cast" in name or name.endswith("_float32")]
    casts = lowered.tojson(remove_amp_cast=False).count('"amp_cast"')
    assert casts == 1 + 2 + 2 + 1, nodes  # the input, two products' parameters, and the way back


def test_variables_are_those_of_the_rest_of_the_graph():
    """A net's input may be a loss's label: to MXNet two variables of one name are two inputs."""
    x, shared = F.var("x"), F.var("weight")
    graph = F.FullyConnected(x, shared, num_hidden=6, no_bias=True)
    (lowered,), _ = lower([graph], "bfloat16", RULES)
    assert (lowered - x + shared.sum()).list_inputs() == ["x", "weight"]


def test_what_is_shared_is_cast_once():
    x, shared = F.var("x"), F.var("weight")
    graph = [F.FullyConnected(x, shared, num_hidden=6, no_bias=True, name=name) for name in "ab"]
    lowered, count = lower(graph, "bfloat16", RULES)
    text = F.Group(lowered).tojson(remove_amp_cast=False)
    assert count == 2 and text.count('"amp_cast"') == 2 + 2


def test_outputs_keep_their_number_and_order():
    x = F.var("x")
    parts = F.split(dense(x, "fc"), num_outputs=2, name="parts")
    line = F.arange(3, name="line")  # without inputs, as a variable is
    lowered, _ = lower([dense(x, "fd"), x, parts, parts[1], line + 1, line], "bfloat16", RULES)
    names = [symbol.list_outputs() for symbol in lowered]
    assert names[1:4] == [["x"], ["parts_output0", "parts_output1"], ["parts_output1"]]
    assert list(map(len, names)) == [1, 1, 2, 1, 1, 1] and names[-1] == ["line_output"]
    assert [symbol.name for symbol in lower([x], "bfloat16", RULES)[0]] == ["x"]
    for symbol in lowered:
        kinds = symbol.infer_type(**dict.fromkeys(symbol.list_inputs(), "float32"))[1]
        assert {np.dtype(kind).name for kind in kinds} == {"float32"}


def test_the_rules_name_operators_of_mxnet():
    for operator in {*RULES.low, *RULES.kept, *RULES.mixed, *RULES.unless}:
        assert mx.operator.get_operator_arguments(operator).narg > 0, operator


@pytest.mark.parametrize("static", [False, True])
def test_gradients_that_add_up_are_not_lost(static):
    """MXNet's way back through a cast drops what is to be added to an array: ten operators take one here."""
    x, weight = F.var("x"), F.var("weight")
    features = x * 1
    parts = [features * number for number in range(1, 10)]
    product = F.FullyConnected(features, weight, num_hidden=3, no_bias=True)
    (lowered,), _ = lower([F.add_n(product, *parts)], "bfloat16", RULES)
    given = {"x": mx.nd.ones((2, 3)), "weight": mx.nd.ones((3, 3))}
    for array in given.values():
        array.attach_grad("add")
    for batch in (1, 2, 3):
        with mx.autograd.record():
            result = mx.nd.CachedOp(lowered, [("static_alloc", static)])(*given.values())
        result.backward()
        assert (given["x"].grad.asnumpy() == batch * (3 + 45)).all()
        assert (given["weight"].grad.asnumpy() == batch * 2).all()
