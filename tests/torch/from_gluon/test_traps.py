"""Where MXNet's operators differ from those that torch has by the same name."""

from functools import partial

import numpy as np
import pytest
import torch

from multifit.gluon.compat import mx
from multifit.torch.from_gluon.attributes import GIVEN, IGNORED, table
from multifit.torch.from_gluon.operators import OPERATORS
from multifit.torch.from_gluon.translate import translate
from tests.torch.from_gluon.agreement import assert_agree, in_mxnet, in_torch, normal

from mxnet.operator import get_operator_arguments  # isort: skip

S = mx.sym
TIES = np.array([[1.0, 2, 2], [3, 3, 0]])


def test_the_first_of_equal_elements_gets_the_gradient():
    other = np.array([[1.0, 2, 1], [3, 1, 0]])
    assert_agree(S.broadcast_maximum, TIES, other)
    assert_agree(S.broadcast_minimum, TIES, other)
    assert_agree(lambda x, y: S.broadcast_maximum(x, y), TIES, TIES[:1])


def test_an_operator_without_attributes_ignores_those_that_it_is_given():
    assert_agree(lambda x, y: S.broadcast_maximum(x, y, axis=1), TIES, TIES[:1])
    for name, function in OPERATORS.items():
        if not set(table(function)) - GIVEN:
            found = get_operator_arguments(name)
            own = {each for each, kind in zip(found.names, found.types) if "NDArray" not in kind}
            assert own <= IGNORED, name


@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_nan_is_an_extreme(name):
    x, y = np.array([np.nan, 1.0, np.nan, 2.0]), np.array([0.0, np.nan, np.nan, 3.0])
    assert_agree(getattr(S, f"broadcast_{name}"), x, y, constant=(0, 1))


def test_the_remainder_of_a_division_by_zero_is_zero():
    assert_agree(S.broadcast_mod, TIES, np.array([0.0, 2, 0]), constant=(1,))
    assert_agree(lambda x: x % 0, np.array([1, -3, 0], "int32"))
    assert_agree(lambda x: S._internal._rmod_scalar(x, scalar=5), np.array([2, -3, 0], "int32"))


@pytest.mark.parametrize("name", ["max", "min"])
def test_all_equal_extremes_get_the_gradient(name):
    assert_agree(lambda x: getattr(S, name)(x, axis=1), TIES)
    assert_agree(lambda x: getattr(S, name)(x, axis=1, keepdims=True), TIES)
    assert_agree(getattr(S, name), TIES)


def test_a_scalar_bound_passes_the_gradient_of_what_is_equal_to_it():
    assert_agree(lambda x: S._internal._maximum_scalar(x, scalar=2), TIES)
    assert_agree(lambda x: S._internal._minimum_scalar(x, scalar=2), TIES)
    assert_agree(lambda x: S.clip(x, a_min=0, a_max=2), TIES)


def test_what_is_reduced_to_one_number_has_an_axis():
    for name in ("sum", "mean", "max", "norm", "prod", "argmax"):
        (number,) = assert_agree(getattr(S, name), TIES + 1)  # MXNet's gradient of a product with a 0 is NaN
        assert number.shape == (1,)
    (number,) = assert_agree(S.dot, np.arange(3.0), np.arange(3.0))
    assert number.shape == (1,)


HALVES = np.array([0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.49999999999999994, 2.4, -2.6])


@pytest.mark.parametrize("name", ["fix", "trunc", "ceil", "floor"])
def test_rounding_of_halves(name):
    assert_agree(getattr(S, name), HALVES)


def test_the_running_variance_is_divided_by_n():
    arrays = normal(4, 3, 5, 5), normal(3), normal(3), normal(3), np.ones(3)
    norm = {"fix_gamma": False, "momentum": 0.75}  # MXNet keeps it in float32
    assert_agree(lambda *x: S.BatchNorm(*x, **norm), *arrays, constant=(3, 4))
    assert_agree(lambda *x: S.BatchNorm(*x, **norm), *arrays, constant=(3, 4), training=False)
    assert_agree(lambda *x: S.BatchNorm(*x, use_global_stats=True, **norm), *arrays, constant=(3, 4))
    assert_agree(lambda *x: S.BatchNorm(*x, **norm, axis=3), normal(4, 2, 5, 3), *arrays[1:], constant=(3, 4))


def norms_of_one_value():
    """Return what torch refuses: each norm, where it takes its mean and variance over a single value."""
    channels, running = [normal(3), normal(3, seed=1)], [normal(3), np.ones(3)]
    for shape in [(1, 3), (1, 3, 1, 1)]:
        ones = np.ones(3)  # as which MXNet writes a fixed gamma
        yield partial(S.BatchNorm, momentum=0.5), (normal(*shape), ones, channels[1], *running)
        options = {"fix_gamma": False, "momentum": 0.5}
        yield partial(S.BatchNorm, **options), (normal(*shape), *channels, *running)
    yield partial(S.BatchNorm, axis=2, **options), (normal(1, 1, 3), *channels, *running)
    for samples in (1, 2):
        x = 100 * normal(samples, 3, 1, 1)  # in which 1 / sqrt(eps) would show every rounding
        yield S.InstanceNorm, [each.astype("float32") for each in (x, *channels)]
        yield partial(S.GroupNorm, num_groups=3), (x, *channels)


NORMS = list(norms_of_one_value())


@pytest.mark.parametrize("number", range(len(NORMS)))
def test_a_norm_of_one_value_is_the_shift(number):
    norm, arrays = NORMS[number]
    (output,) = assert_agree(lambda *x: norm(*x), *arrays, constant=(3, 4))
    np.testing.assert_array_equal(output.ravel(), np.tile(arrays[2], output.size // 3))
    symbol = norm(*[S.var(f"x{i}") for i in range(len(arrays))])
    x, *rest = (torch.from_numpy(each).float() for each in arrays)
    module = translate(symbol.tojson(), [f"x{i}" for i in range(len(arrays))], {}, True)
    assert module(x.bfloat16(), *rest)[0].dtype == torch.bfloat16  # parameters stay as they are


def test_no_class_is_hot_for_an_index_outside():
    for dtype in ("float64", "int32", "int8"):
        index = np.array([-1, 1, 5], dtype)
        assert_agree(lambda i: S.one_hot(i, depth=3, dtype="float64"), index, constant=(0,))
    assert_agree(lambda i: S.one_hot(i, depth=300, on_value=2), np.array([1, 255], "uint8"), constant=(0,))


def test_pooling_of_equal_pixels():
    assert_agree(lambda x: S.Pooling(x, kernel=(2, 2), stride=(2, 2)), np.zeros((1, 1, 4, 4)))


NAN = float("nan")
ZEROS = np.zeros((2, 3))
WITH_NAN = np.array([NAN, 1, 2, 3])
# what docs/leaving-mxnet.md lists, with our output or gradient, and MXNet's if it is always the same
DIFFERENT = {
    "topk": ("output", partial(S.topk, k=4, axis=1), np.zeros((1, 17)), [0, 1, 2, 3], None),
    "argsort": ("output", partial(S.argsort, axis=1), np.zeros((1, 17)), range(17), None),
    "cast": ("gradient", lambda x: 1.75 * S.cast(S.cast(x, "int32"), "float64"), ZEROS, 0, None),
    "norm": ("gradient", partial(S.norm, axis=1), ZEROS, 0, NAN),
    "power": ("gradient", lambda x: x**0, ZEROS, 0, NAN),
    "prod": ("gradient", S.prod, ZEROS, 0, NAN),
    "relu": ("gradient", S.relu, WITH_NAN[:1], 1, NAN),
    "clip": ("gradient", partial(S.clip, a_min=0, a_max=9), WITH_NAN[:1], 0, 1),
    "pool": ("output", partial(S.Pooling, kernel=4), WITH_NAN[None, None], NAN, 3),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_differs(name):
    kind, make, x, ours, mxnets = DIFFERENT[name]
    symbol, at = make(S.var("x0")), ("output", "gradient").index(kind)
    theirs, heads = in_mxnet(symbol, {"x0": x}, ["x0"], True)
    found = in_torch(symbol, {"x0": x}, ["x0"], True, heads)
    scale = np.abs(heads[0]).item() if at and heads[0].size == 1 else 1  # the gradient that arrives
    np.testing.assert_array_equal(np.ravel(found[at][0]) / scale, np.full(found[at][0].size, ours))
    assert not np.array_equal(found[at][0], theirs[at][0], equal_nan=True)
    if mxnets is not None:
        np.testing.assert_array_equal(np.abs(theirs[at][0] / scale), np.full(theirs[at][0].shape, mxnets))
