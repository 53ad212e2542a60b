"""Operators that compute, in MXNet and translated, for arrays and attributes that Hypothesis finds."""

import itertools
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from multifit.gluon.compat import mx
from multifit.torch.from_gluon.operators.layers import fully_connected
from multifit.torch.from_gluon.translate import translate
from tests.torch.from_gluon.agreement import assert_agree, normal

S = mx.sym
few = settings(max_examples=8, deadline=None, derandomize=True)
SHAPES = st.lists(st.integers(1, 3), min_size=1, max_size=4).map(tuple)
# MXNet computes constants of these, of their gradients, or everything in float32.
LOOSE = {"erf": 1e-6, "erfinv": 1e-6}


def named(name):
    """Return an operator by the name in a symbol."""
    return (
        getattr(S, name, None)
        or getattr(S._internal, name, None)
        or getattr(S.contrib, name.replace("_contrib_", ""))
    )


ANYWHERE = [
    "abs", "arctan", "arcsinh", "ceil", "cos", "cosh", "erf", "exp", "expm1", "fix",
    "floor", "identity", "logical_not", "negative", "ones_like", "relu",
    "sigmoid", "sign", "sin", "sinh", "square", "stop_gradient", "tan", "tanh", "trunc",
    "zeros_like", "smooth_l1", "Flatten", "shape_array", "size_array", "_contrib_div_sqrt_dim",
]  # fmt: skip

POSITIVE = [
    "log", "log10", "log1p", "log2", "reciprocal", "rsqrt", "sqrt", "arccosh",
]  # fmt: skip

BETWEEN = ["arccos", "arcsin", "arctanh", "erfinv"]


@pytest.mark.parametrize("name", ANYWHERE + POSITIVE + BETWEEN)
def test_one_tensor(name):
    x = normal(3, 4)
    x = np.abs(x) + 1.1 if name in POSITIVE else np.tanh(x) * 0.9 if name in BETWEEN else x
    assert_agree(named(name), x, tolerance=LOOSE.get(name, 1e-10))


BINARY = ["add", "sub", "mul", "div", "mod", "power", "maximum", "minimum"]

COMPARISONS = ["equal", "not_equal", "greater", "greater_equal", "lesser", "lesser_equal"]

LOGICAL = ["logical_and", "logical_or", "logical_xor"]


@pytest.mark.parametrize("name", [*BINARY, *COMPARISONS, *LOGICAL])
@few
@given(shape=SHAPES, data=st.data())
def test_two_tensors(name, shape, data):
    other = tuple(data.draw(st.sampled_from([1, size])) for size in shape)
    x, y = np.abs(normal(*shape)) + 0.1, np.abs(normal(*other, seed=1)) + 0.1
    if name in COMPARISONS + LOGICAL:
        x, y = x.round(), y.round()
    assert_agree(named(f"broadcast_{name}"), x, y)


@pytest.mark.parametrize("name", [*BINARY, *COMPARISONS, *LOGICAL])
def test_two_tensors_of_equal_shapes(name):
    x, y = normal(3, 4), normal(3, 4, seed=1)
    x, y = (np.abs(x), np.abs(y)) if name in BINARY else (x.round(), y.round())
    assert_agree(named(f"_{name}"), x, y)


SCALAR = [
    "plus",
    "minus",
    "rminus",
    "mul",
    "div",
    "rdiv",
    "mod",
    "rmod",
    "power",
    "rpower",
    "maximum",
    "minimum",
]


@pytest.mark.parametrize("name", [*SCALAR, *COMPARISONS, *LOGICAL])
@pytest.mark.parametrize("scalar", [0.0, 1.0, 2.5])
def test_a_tensor_and_a_number(name, scalar):
    x = np.abs(normal(3, 4)) + 0.1
    x[0, 0] = scalar or 1
    if scalar or name not in ("div", "mod", "rpower"):
        assert_agree(partial(named(f"_{name}_scalar"), scalar=scalar), x)


@pytest.mark.parametrize("name", ["plus", "minus", "rminus", "mul", "div", "rdiv", *COMPARISONS])
def test_an_integer_tensor_and_a_number(name):
    assert_agree(partial(named(f"_{name}_scalar"), scalar=2.7), np.array([[1, -2], [3, 4]], "int32"))


WITHOUT_INTEGERS = {"arccos", "arcsin", "arctanh", "erfinv"}
SMALL = np.array([[1, 2, 7], [3, 4, 5]])


@pytest.mark.parametrize("dtype", ["int32", "uint8"])
@pytest.mark.parametrize("name", sorted({*ANYWHERE, *POSITIVE} - WITHOUT_INTEGERS))
def test_one_integer_tensor(name, dtype):
    x = SMALL.clip(max=3) if name == "erf" else SMALL  # beyond 3, the rest to 1 is in MXNet's last bit
    assert_agree(named(name), x.astype(dtype))


@pytest.mark.parametrize("dtype", ["int32", "uint8"])
@pytest.mark.parametrize("name", [*BINARY, *COMPARISONS, *LOGICAL])
def test_two_integer_tensors(name, dtype):
    assert_agree(named(f"broadcast_{name}"), SMALL.astype(dtype), np.array([[2], [3]], dtype))


@pytest.mark.parametrize("dtype", ["int32", "uint8"])
def test_other_integer_tensors(dtype):
    x = SMALL.astype(dtype)
    for name in ("sum", "mean", "prod", "max", "min"):
        assert_agree(partial(named(name), axis=1), x)
    assert_agree(partial(S.clip, a_min=1.5, a_max=4.5), x)
    assert_agree(partial(S.clip, a_min=0, a_max=1e30), x)
    assert_agree(partial(S.norm, ord=1, axis=1), x)  # MXNet rounds within that of squares
    assert_agree(partial(S._internal._power_scalar, scalar=-1.5), x)
    assert_agree(partial(S._internal._rpower_scalar, scalar=2.5), x)
    assert_agree(partial(S.contrib.arange_like, start=1.5, step=2.5), x)
    assert_agree(lambda x: S.broadcast_add(x, S.expand_dims(S.arange(0, 2.9, dtype=dtype), 0)), x)


@pytest.mark.parametrize("name", ["sum", "mean", "prod", "max", "min"])
@few
@given(shape=SHAPES, keepdims=st.booleans(), exclude=st.booleans(), data=st.data())
def test_reductions(name, shape, keepdims, exclude, data):
    axis = data.draw(
        st.none() | st.sets(st.integers(0, len(shape) - 1), min_size=1).map(lambda s: tuple(sorted(s)))
    )
    options = {} if axis is None else {"axis": axis, "exclude": exclude}
    assert_agree(partial(named(name), keepdims=keepdims, **options), normal(*shape))


@few
@given(shape=SHAPES, keepdims=st.booleans(), ord=st.sampled_from([1, 2]), data=st.data())
def test_norm(shape, keepdims, ord, data):
    axis = data.draw(st.none() | st.integers(-len(shape), len(shape) - 1))
    assert_agree(partial(S.norm, ord=ord, axis=axis, keepdims=keepdims), normal(*shape))


@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_indices_of_extremes(name):
    x = normal(3, 4).round()
    assert_agree(named(name), x, constant=(0,))
    assert_agree(partial(named(name), axis=0, keepdims=True), x)


@few
@given(axis=st.sampled_from([None, 0, 1, -1]), ascend=st.booleans(), k=st.integers(0, 4), data=st.data())
def test_ordering(axis, ascend, k, data):
    options = {"axis": axis, "is_ascend": ascend}
    x = np.random.RandomState(k).permutation(20).reshape(4, 5) / 4
    assert_agree(partial(S.sort, **options), x)
    assert_agree(partial(S.argsort, dtype="float64", **options), x)
    for returned in ("value", "indices", "both"):
        assert_agree(partial(S.topk, k=k, ret_typ=returned, dtype="float64", **options), x)


def test_other_elementwise():
    x, y = normal(3, 4), normal(3, 4, seed=1)
    assert_agree(lambda x, y: S.add_n(x, y, x), x, y)
    assert_agree(S.where, (x > 0).astype("float64"), x, y, constant=(0,))
    assert_agree(S.where, np.array([1.0, 0, 2]), x, y, constant=(0,))
    assert_agree(partial(S.Cast, dtype="int32"), x * 3, constant=(0,))
    for like in (S.zeros_like, S.ones_like):
        assert_agree(partial(like, dtype="int64"), x)  # which MXNet ignores
    assert_agree(lambda x, y: S._internal._grad_add(x, y), x, y, constant=(0, 1))
    assert_agree(partial(S.smooth_l1, scalar=2.0), x)
    for scalar in (-0.3, 1.0):
        assert_agree(partial(S.contrib.gradientmultiplier, scalar=scalar), x)
        assert_agree(partial(S.contrib.gradientmultiplier, scalar=scalar), np.array([[1, -2]], "int32"))
    assert_agree(lambda x: S.contrib.gradientmultiplier(x) * 2, x)


@few
@given(a=st.booleans(), b=st.booleans(), alpha=st.sampled_from([1.0, 0.5]))
def test_products(a, b, alpha):
    x, y = normal(*((4, 3) if a else (3, 4))), normal(*((5, 4) if b else (4, 5)))
    transposed = {"transpose_a": a, "transpose_b": b}
    assert_agree(partial(S.dot, **transposed), x, y)
    batch = [np.stack([each, each + 1]) for each in (x, y)]
    assert_agree(partial(S.batch_dot, **transposed), *batch)
    assert_agree(partial(S.linalg.gemm2, alpha=alpha, **transposed), *batch)


def test_other_products():
    assert_agree(S.dot, normal(2, 3, 4), normal(4, 5, 6))
    assert_agree(partial(S.dot, transpose_a=True), normal(4, 2, 3), normal(4, 5))
    assert_agree(partial(S.dot, transpose_b=True), normal(2, 4), normal(5, 3, 4))
    for options in ({}, {"no_bias": True}, {"flatten": False}):
        weight = normal(5, 4 if options.get("flatten") is False else 12)
        arrays = [normal(2, 3, 4), weight, normal(5)][: 2 if options.get("no_bias") else 3]
        assert_agree(partial(S.FullyConnected, num_hidden=5, **options), *arrays)
    assert_agree(partial(S.FullyConnected, num_hidden=5), normal(3), normal(5, 1), normal(5))


def test_a_dense_layer_takes_no_rows():
    x, weight, bias = map(torch.tensor, (np.zeros((0, 3, 4)), normal(5, 12), normal(5)))
    assert fully_connected(x, weight, bias, num_hidden=5).shape == (0, 5)


KINDS = list(itertools.product(["float16", "float32"], repeat=2))


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("kinds", KINDS, ids="-".join)
def test_types_that_are_made_one(kinds, narrow):
    options = {"num_outputs": 2, "cast_narrow": narrow}
    symbol = mx.sym.Group(list(mx.sym.amp_multicast(*map(mx.sym.var, "xy"), **options)))
    expected = symbol.infer_type(x=kinds[0], y=kinds[1])[1]  # MXNet cannot compute all of them
    module = translate(symbol.tojson(remove_amp_cast=False), ["x", "y"], {})
    found = module(*[torch.tensor([1.5, 2.5], dtype=getattr(torch, kind)) for kind in kinds])
    assert [each.numpy().dtype for each in found] == expected
    assert all(each.tolist() == [1.5, 2.5] for each in found)
