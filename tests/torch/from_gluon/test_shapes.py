"""Operators that move, look up and make elements, in MXNet and translated."""

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from multifit.torch.from_gluon.translate import translate
from tests.torch.from_gluon.agreement import assert_agree, normal
from tests.torch.from_gluon.test_operators import SHAPES, S, few, named


@pytest.mark.parametrize(
    ("codes", "reverse"),
    [
        ((-1,), False), ((0, -1), False), ((0, 0, -1), False), ((-3, -3), False), ((-2,), False),
        ((0, -3, 0), False),
        ((-3, -2), False), ((-4, 1, 2, -2), False), ((-4, -1, 2, 0, -3), False), ((0, -4, 3, -1, -2), False),
        ((6, 0, -1), True), ((-1, 0), True), ((0, -3, 0), True), ((4, 30), False),
    ],
)  # fmt: skip
def test_reshape(codes, reverse):
    assert_agree(partial(S.Reshape, shape=codes, reverse=reverse), normal(2, 3, 4, 5))


def test_reshape_like():
    assert_agree(S.reshape_like, normal(2, 6), normal(3, 4))
    some = {"lhs_begin": 1, "lhs_end": None, "rhs_begin": 1, "rhs_end": 3}
    assert_agree(partial(S.reshape_like, **some), normal(2, 6), normal(5, 3, 2))
    some = {"lhs_begin": -2, "lhs_end": -1, "rhs_begin": 0, "rhs_end": -1}
    assert_agree(partial(S.reshape_like, **some), normal(6, 2), normal(3, 2, 5))


@few
@given(shape=SHAPES, data=st.data())
def test_shapes(shape, data):
    x, axes = normal(*shape), st.integers(-len(shape), len(shape) - 1)
    order = data.draw(st.permutations(range(len(shape))))
    assert_agree(S.transpose, x)
    assert_agree(partial(S.transpose, axes=tuple(order)), x)
    assert_agree(partial(S.expand_dims, axis=data.draw(st.integers(-len(shape) - 1, len(shape)))), x)
    assert_agree(partial(S.SwapAxis, dim1=order[0], dim2=order[-1]), x)
    assert_agree(S.squeeze, x)
    ones = tuple(i for i, size in enumerate(shape) if size == 1)
    if ones:
        assert_agree(partial(S.squeeze, axis=ones[0]), x)
    assert_agree(partial(S.reverse, axis=order[0]), x)
    if len(shape) < 3:  # MXNet has no gradient of further axes
        assert_agree(partial(S.tile, reps=(2,) * len(shape)), x)
    assert_agree(partial(S.repeat, repeats=2, axis=data.draw(st.none() | axes)), x)
    begin = data.draw(st.integers(0, shape[order[0]] - 1))
    assert_agree(partial(S.slice_axis, axis=order[0], begin=begin, end=None), x)
    assert_agree(partial(S.stack, axis=data.draw(axes)), x, x + 1)
    assert_agree(partial(S.Concat, dim=data.draw(axes)), x, x + 1)


def test_broadcasting():
    x = normal(3, 1, 4)
    assert_agree(partial(S.broadcast_to, shape=(0, 5, 0)), x)
    assert_agree(S.broadcast_like, x, normal(3, 5, 4))
    assert_agree(partial(S.broadcast_like, lhs_axes=(1,), rhs_axes=(0,)), x, normal(6, 2))
    assert_agree(partial(S.broadcast_axis, axis=1, size=2), x)


@pytest.mark.parametrize(
    ("begin", "end", "step"),
    [
        ((0, 1), (2, 3), ()), ((None, 1), (None, None), (None, 2)), ((1,), (3,), ()),
        ((None, 4), (None, 0), (None, -2)),
        ((None, None), (None, None), (-1, -1)), ((-2, -3), (None, -1), (1, 1)),
    ],
)  # fmt: skip
def test_slice(begin, end, step):
    assert_agree(partial(S.slice, begin=begin, end=end, step=step), normal(3, 6))


def test_slice_like():
    assert_agree(S.slice_like, normal(3, 6), normal(2, 4))
    assert_agree(partial(S.slice_like, axes=(-1,)), normal(3, 6), normal(2, 4))


@pytest.mark.parametrize("squeeze", [False, True])
def test_splits(squeeze):
    assert_agree(lambda x: list(S.split(x, num_outputs=3, axis=1, squeeze_axis=squeeze)), normal(2, 3))
    assert_agree(lambda x: S.split(x, num_outputs=1, axis=0), normal(2, 3))
    assert_agree(lambda x: list(S.split_v2(x, 3, axis=1, squeeze_axis=squeeze)), normal(2, 3))
    assert_agree(lambda x: list(S.split_v2(x, (1, 3), axis=1)), normal(2, 6))


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect"])
def test_pad(mode):
    width = (0, 0, 0, 0, 1, 2, 3, 1)
    assert_agree(partial(S.Pad, mode=mode, pad_width=width, constant_value=2.5), normal(2, 3, 4, 5))


def test_creation():
    like = normal(2, 3)
    assert_agree(lambda x: S.zeros((2, 3), dtype="float64") + x, like)
    assert_agree(lambda x: S.ones((2, 3), dtype="float64") + x, like)
    assert_agree(lambda x: S.full((2, 3), 2.5, dtype="float64") + x, like)
    assert_agree(lambda x: S.Group([S.arange(5, dtype="float64"), x]), like, constant=(0,))
    assert_agree(lambda x: S.Group([S.arange(2, 9, 1.5, repeat=2, dtype="int32"), x]), like, constant=(0,))
    assert_agree(partial(S.contrib.arange_like, axis=1, start=2, step=0.5), like)
    assert_agree(partial(S.contrib.arange_like, start=2, step=0.5), like)
    assert_agree(partial(S.contrib.arange_like, axis=1, repeat=2), normal(2, 6))


@few
@given(mode=st.sampled_from(["clip", "wrap"]), axis=st.sampled_from([0, 1, -1]), keepdims=st.booleans())
def test_looking_up(mode, axis, keepdims):
    x = normal(4, 5)
    index = np.random.RandomState(0).randint(-6, 9, x.shape[1 - axis % 2]).astype("float64")
    assert_agree(partial(S.pick, axis=axis, keepdims=keepdims, mode=mode), x, index, constant=(1,))
    assert_agree(partial(S.take, axis=axis, mode=mode), x, index.reshape(1, -1), constant=(1,))


def test_looking_up_elements():
    x, index = normal(3, 4), np.array([[0.0, 2, 1], [3, 0, 0]])
    assert_agree(S.gather_nd, x, index, constant=(1,))
    assert_agree(S.gather_nd, x, index[:1], constant=(1,))
    assert_agree(partial(S._internal._backward_gather_nd, shape=(3, 4)), normal(3), index * 0, constant=(1,))
    assert_agree(
        partial(S.Embedding, input_dim=3, output_dim=4), np.array([[0.0, 5], [-1, 1]]), x, constant=(0,)
    )
    hot = {"depth": 4, "on_value": 0.9, "off_value": 0.1, "dtype": "float64"}  # float32 has neither
    assert_agree(partial(S.one_hot, **hot), np.array([[0.0, 3], [2, 1]]), constant=(0,))


@pytest.mark.parametrize("axis", [0, 1])
def test_sequences(axis):
    x = normal(4, 3, 2) if axis == 0 else normal(3, 4, 2)
    length = np.array([1.5, 4, 2])  # towards zero
    for name in ("SequenceMask", "SequenceLast"):
        operator = partial(named(name), axis=axis)
        constant = (0,) if name == "SequenceLast" else ()  # MXNet's gradient is wrong
        assert_agree(operator, x, constant=constant)
        assert_agree(partial(operator, use_sequence_length=True), x, length, constant=(1,))
    mask = partial(S.SequenceMask, use_sequence_length=True, axis=axis, value=-1)
    assert_agree(mask, x, length, constant=(1,))
    assert_agree(S.SequenceReverse, x)
    if axis == 0:
        assert_agree(partial(S.SequenceReverse, use_sequence_length=True), x, length, constant=(1,))


@pytest.mark.parametrize(
    ("make", "mean", "deviation"),
    [
        (lambda x: S.random.uniform(1, 3, shape=(100, 100)), 2, 3**-0.5),
        (lambda x: S.random.normal(1, 3, shape=(100, 100)), 1, 3),
        (lambda x: S.random.uniform_like(x, low=1, high=3), 2, 3**-0.5),
        (lambda x: S.random.normal_like(x, loc=1, scale=3), 1, 3),
    ],
)
def test_mean_and_deviation(make, mean, deviation):
    x = S.var("x")
    module = translate(S.Group([make(x), x]).tojson(), ["x"], {})
    torch.manual_seed(0)
    numbers, _ = module(torch.zeros(100, 100))
    assert numbers.mean().item() == pytest.approx(mean, abs=0.1)
    assert numbers.std().item() == pytest.approx(deviation, rel=0.03)
    assert not torch.equal(module(torch.zeros(100, 100))[0], numbers)
