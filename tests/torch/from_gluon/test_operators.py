"""Every operator, in MXNet and translated: one table of operators, arrays and attributes, in float64.

Compared are outputs, gradients and running statistics. Comments say where MXNet's are wrong.
"""

import itertools
import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest

from multifit.gluon.compat import mx
from multifit.torch.from_gluon.attributes import GIVEN, IGNORED, table
from multifit.torch.from_gluon.operators import OPERATORS
from tests.torch.from_gluon.agreement import assert_agree, normal

from mxnet.operator import get_operator_arguments  # isort: skip

S = mx.sym
Attributes = dict[str, Any]


class Row(NamedTuple):
    make: Callable[..., Any]
    arrays: Sequence[Any]
    options: dict[str, Any]


def rows(names: Any, arrays: Sequence[Any], *attributes: Attributes, **options: Any) -> list[Any]:
    """Return rows for operators by name, or a function of symbols, with each set of attributes.

    The options are those of `assert_agree`: `constant` are the arrays whose gradients are not compared.
    """
    makes = {name: named(name) for name in names.split()} if isinstance(names, str) else {"lambda": names}
    return [
        pytest.param(Row(partial(make, **each), arrays, options), id=name)
        for name, make in makes.items()
        for each in attributes or [{}]
    ]


def named(name: str) -> Any:
    """Return an operator by its name in a symbol."""
    for prefix, holder in (("_contrib_", S.contrib), ("_linalg_", S.linalg), ("_random_", S.random)):
        if name.startswith(prefix):
            return getattr(holder, name.removeprefix(prefix))
    return getattr(S, name, None) or getattr(S._internal, name)


def grid(**values: Any) -> list[Attributes]:
    """Return all combinations of attributes' values."""
    return [dict(zip(values, each)) for each in itertools.product(*values.values())]


def some(count: int, **values: Any) -> list[Attributes]:
    """Return some of all combinations."""
    every = grid(**values)
    return [every[i] for i in np.random.RandomState(0).permutation(len(every))[:count]]


BOOL, NAN = [False, True], float("nan")
X, Y, CUBE, MAPS = normal(3, 4), normal(3, 4, seed=1), normal(2, 3, 4), normal(2, 3, 4, 5)
POSITIVES, BETWEEN = np.abs(X) + 0.1, np.tanh(X) * 0.9
TIES, OTHER = np.array([[1.0, 2, 2], [3, 3, 0]]), np.array([[1.0, 2, 1], [3, 1, 0]])
WITH_NAN = np.array([NAN, 1.0, NAN, 2.0]), np.array([0.0, NAN, NAN, 3.0])
HALVES = np.array([0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.49999999999999994, 2.4, -2.6])
FLOAT32 = 1e-6  # a tolerance for what MXNet computes, with gradients or constants, in float32

ANYWHERE = (
    "abs arctan arcsinh ceil cos cosh exp expm1 fix floor identity logical_not negative ones_like relu "
    "sigmoid sign sin sinh square stop_gradient tan tanh trunc zeros_like smooth_l1 Flatten "
    "shape_array size_array _contrib_div_sqrt_dim"
)
ABOVE_1 = "log log10 log1p log2 reciprocal rsqrt sqrt arccosh"
ARITHMETIC = ["add", "sub", "mul", "div", "mod", "power", "maximum", "minimum"]
COMPARISONS = ["equal", "not_equal", "greater", "greater_equal", "lesser", "lesser_equal"]
COMPARISONS += ["logical_and", "logical_or", "logical_xor"]
ROUNDED = ["plus", "minus", "rminus", "mul", "div", "rdiv", *COMPARISONS[:6]]
SCALAR = [*ROUNDED, "power", "rmod", "maximum", "minimum", *COMPARISONS[6:]]


def each_of(names: list[str], form: str) -> str:
    return " ".join(form.format(name) for name in names)


def of_integers(dtype: str) -> list[Any]:
    x, y = np.array([[1, 2, 7], [3, 4, 5]], dtype), np.array([[2], [3]], dtype)

    def with_range(x: Any) -> Any:
        return S.broadcast_add(x, S.expand_dims(S.arange(0, 2.9, dtype=dtype), 0))

    return [
        *rows(f"{ANYWHERE} {ABOVE_1}", [x]),
        *rows("erf", [x.clip(max=3)]),  # beyond, the rest to 1 is in MXNet's last bit
        *rows(each_of([*ARITHMETIC, *COMPARISONS], "broadcast_{}"), [x, y]),
        *rows("sum mean prod max min", [x], {"axis": 1}),
        *rows("clip", [x], {"a_min": 1.5, "a_max": 4.5}, {"a_min": 0, "a_max": 1e30}),
        *rows("norm", [x], {"ord": 1, "axis": 1}),  # MXNet rounds within that of squares
        *rows("_power_scalar", [x], {"scalar": -1.5}),
        *rows("_rpower_scalar", [x], {"scalar": 2.5}),
        *rows("_contrib_arange_like", [x], {"start": 1.5, "step": 2.5}),
        *rows(with_range, [x]),
    ]


def of_two(names: list[str], form: Callable[..., Any]) -> list[Any]:
    pairs = (((3, 4), (3, 1)), ((1, 2, 3), (4, 1, 3)), ((3,), (3,)))
    whole = ["elemwise_{}" if name in ARITHMETIC[:4] else "_{}" for name in names]
    return [
        *rows(" ".join(each.format(name) for each, name in zip(whole, names)), [form(X), form(Y)]),
        *itertools.chain.from_iterable(
            rows(each_of(names, "broadcast_{}"), [form(normal(*one)), form(normal(*other, seed=1))])
            for one, other in pairs
        ),
    ]


ELEMENTWISE = [
    *rows(ANYWHERE, [X]),
    *rows(ABOVE_1, [np.abs(X) + 1.1]),
    *rows("arccos arcsin arctanh", [BETWEEN]),
    *rows("erf", [X], tolerance=FLOAT32),
    *rows("erfinv", [BETWEEN], tolerance=FLOAT32),
    *rows("fix trunc ceil floor", [HALVES]),
    *of_two(ARITHMETIC, lambda x: np.abs(x) + 0.1),
    *of_two(COMPARISONS, np.round),
    *rows(each_of(SCALAR, "_{}_scalar"), [POSITIVES], {"scalar": 1.0}, {"scalar": 2.5}),
    *rows(each_of(["mod", "rpower"], "_{}_scalar"), [POSITIVES], {"scalar": 1.0}, {"scalar": 2.5}),
    *rows(each_of(sorted({*SCALAR} - {"div"}), "_{}_scalar"), [POSITIVES], {"scalar": 0.0}),
    *rows(each_of(COMPARISONS, "_{}_scalar"), [TIES], {"scalar": 1.0}, {"scalar": 0.0}),
    *of_integers("int32"),
    *of_integers("uint8"),
    *rows(each_of(ROUNDED, "_{}_scalar"), [np.array([[1, -2], [3, 4]], "int32")], {"scalar": 2.7}),
    # the first of equal elements gets the gradient; what is equal to a bound gets it, too
    *rows("broadcast_maximum broadcast_minimum", [TIES, OTHER]),
    *rows("broadcast_maximum broadcast_minimum", [TIES, TIES[:1]], {"axis": 1}),  # which they ignore
    *rows("broadcast_maximum broadcast_minimum", WITH_NAN, constant=(0, 1)),
    *rows("_maximum_scalar _minimum_scalar", [TIES], {"scalar": 2}),
    *rows("clip", [TIES], {"a_min": 0, "a_max": 2}),
    *rows("broadcast_mod", [TIES, np.array([0.0, 2, 0])], constant=(1,)),
    *rows("_mod_scalar", [np.array([1, -3, 0], "int32")], {"scalar": 0}),
    *rows("_rmod_scalar", [np.array([2, -3, 0], "int32")], {"scalar": 5}),
    *rows(lambda x, y: S.add_n(x, y, x), [X, Y]),
    *rows("where", [(X > 0).astype("float64"), X, Y], constant=(0,)),
    *rows("where", [np.array([1.0, 0, 2]), X, Y], constant=(0,)),
    *rows("Cast", [X * 3], {"dtype": "int32"}, constant=(0,)),
    *rows("zeros_like ones_like", [X], {"dtype": "int64"}),  # which MXNet ignores
    *rows("_grad_add", [X, Y], constant=(0, 1)),
    *rows("smooth_l1", [X], {"scalar": 2.0}),
    *rows("_contrib_gradientmultiplier", [X], {"scalar": -0.3}, {"scalar": 1.0}),
    *rows("_contrib_gradientmultiplier", [np.array([[1, -2]], "int32")], {"scalar": -0.3}, {"scalar": 1.0}),
    *rows(lambda x: S.contrib.gradientmultiplier(x) * 2, [X]),
]

PERMUTED = np.random.RandomState(3).permutation(20).reshape(4, 5) / 4
ORDERS = {"axis": [None, 0, -1], "is_ascend": BOOL}
TOP = {**ORDERS, "k": [0, 3, 4], "ret_typ": ["value", "indices", "both"], "dtype": ["float64"]}
REDUCTIONS = [
    *rows(
        "sum mean prod max min", [CUBE], {}, *grid(axis=[1, (0, 2), (0, 1, 2)], keepdims=BOOL, exclude=BOOL)
    ),
    *rows("max min", [TIES], {}, *grid(axis=[1], keepdims=BOOL)),  # all equal extremes get the gradient
    *rows("norm", [CUBE], *grid(ord=[1, 2], axis=[None, 0, -1], keepdims=BOOL)),
    *rows("argmax argmin", [X.round()], {}, {"axis": 0, "keepdims": True}, constant=(0,)),
    *rows("sort", [PERMUTED], *grid(**ORDERS)),
    *rows("argsort", [PERMUTED], *grid(**ORDERS, dtype=["float64"])),
    *rows("topk", [PERMUTED], *grid(**TOP)),
]

CODES = [
    (-1,), (0, -1), (0, 0, -1), (-3, -3), (-2,), (0, -3, 0), (-3, -2), (-4, 1, 2, -2), (-4, -1, 2, 0, -3),
    (0, -4, 3, -1, -2), (4, 30),
]  # fmt: skip
SLICES = [
    ((0, 1), (2, 3), ()), ((None, 1), (None, None), (None, 2)), ((1,), (3,), ()),
    ((None, 4), (None, 0), (None, -2)), ((None, None), (None, None), (-1, -1)),
    ((-2, -3), (None, -1), (1, 1)),
]  # fmt: skip


def of_shape(*shape: int) -> list[Any]:
    x, order, ends = normal(*shape), (*range(1, len(shape)), 0), range(-len(shape), 0)
    return [
        *rows("squeeze", [x], {}, *[{"axis": axis} for axis in ends if shape[axis] == 1]),
        *rows("transpose", [x], {}, {"axes": order}),
        *rows("expand_dims", [x], *grid(axis=[*ends, *order])),
        *rows("SwapAxis", [x], *grid(dim1=[*ends, *order], dim2=[0])),
        *rows("repeat", [x], *grid(axis=[None, *ends, *order], repeats=[2])),
        *rows("stack", [x, x + 1], *grid(axis=[*ends, *order])),
        *rows("Concat", [x, x + 1], *grid(dim=order)),
        *rows("reverse", [x], *grid(axis=order)),
        *rows("slice_axis", [x], *grid(axis=[*ends, *order], begin=[0], end=[None, 1, -1][: min(shape) + 1])),
    ]


SHAPES = [
    *of_shape(3), *of_shape(2, 1), *of_shape(1, 1), *of_shape(2, 1, 3),
    *rows("tile", [normal(2, 3)], {"reps": (2, 2)}),  # MXNet has no gradient of further axes
    *rows("Reshape", [MAPS], *grid(shape=CODES)),
    *rows("Reshape", [MAPS], *grid(shape=[(6, 0, -1), (-1, 0), (0, -3, 0)], reverse=[True])),
    *rows("reshape_like", [normal(2, 6), normal(3, 4)]),
    *rows("reshape_like", [normal(2, 6), normal(5, 3, 2)],
        {"lhs_begin": 1, "lhs_end": None, "rhs_begin": 1, "rhs_end": 3}),
    *rows("reshape_like", [normal(6, 2), normal(3, 2, 5)],
        {"lhs_begin": -2, "lhs_end": -1, "rhs_begin": 0, "rhs_end": -1}),
    *rows("_rnn_param_concat", [X, Y], {"dim": 0}),
    *rows("broadcast_to", [normal(3, 1, 4)], {"shape": (0, 5, 0)}),
    *rows("broadcast_like", [normal(3, 1, 4), normal(3, 5, 4)]),
    *rows("broadcast_like", [normal(3, 1, 4), normal(6, 2)], {"lhs_axes": (1,), "rhs_axes": (0,)}),
    *rows("broadcast_axis", [normal(3, 1, 4)], {"axis": 1, "size": 2}),
    *rows("slice", [normal(3, 6)], *[dict(zip(("begin", "end", "step"), each)) for each in SLICES]),
    *rows("slice_like", [normal(3, 6), normal(2, 4)], {}, {"axes": (-1,)}),
    *rows("split", [normal(2, 3)], {"num_outputs": 1, "axis": 0},
        *grid(num_outputs=[3], axis=[1], squeeze_axis=BOOL)),
    *rows("split_v2", [normal(2, 3)], *grid(indices_or_sections=[3], axis=[1], squeeze_axis=BOOL)),
    *rows("split_v2", [normal(2, 6)], {"indices_or_sections": (1, 3), "axis": 1}),
    *rows("Pad", [MAPS], *grid(
        mode=["constant", "edge", "reflect"], pad_width=[(0, 0, 0, 0, 1, 2, 3, 1)], constant_value=[2.5])),
]  # fmt: skip

PLACES = np.random.RandomState(0).randint(-6, 9, 5).astype("float64")
HOT = {"on_value": 0.9, "off_value": 0.1, "dtype": "float64"}  # float32 has neither number
INDEXING = [
    *rows(lambda x: S.zeros((2, 3), dtype="float64") + x, [normal(2, 3)]),
    *rows(lambda x: S.ones((2, 3), dtype="float64") + x, [normal(2, 3)]),
    *rows(lambda x: S.full((2, 3), 2.5, dtype="float64") + x, [normal(2, 3)]),
    *rows(lambda x: S.Group([S.arange(5, dtype="float64"), x]), [X], constant=(0,)),
    *rows(lambda x: S.Group([S.arange(2, 9, 1.5, repeat=2, dtype="int32"), x]), [X], constant=(0,)),
    *rows("_contrib_arange_like", [X], *grid(start=[2], step=[0.5], axis=[None, 1])),
    *rows("_contrib_arange_like", [X], {"axis": 1, "repeat": 2}),
    *rows("pick", [normal(4, 5), PLACES], *grid(axis=[0], keepdims=BOOL), constant=(1,)),
    *rows("pick", [normal(4, 5), PLACES[:4]], *grid(axis=[1, -1], keepdims=BOOL), constant=(1,)),
    *rows("take", [normal(4, 5), PLACES[None]], *grid(axis=[0, 1, -1], mode=["clip"]), constant=(1,)),
    *rows("gather_nd", [X, np.array([[0.0, 2, 1], [3, 0, 0]])], constant=(1,)),
    *rows("gather_nd", [X, np.array([[0.0, 2, 1]])], constant=(1,)),
    *rows("_backward_gather_nd", [normal(3), np.zeros((2, 3))], {"shape": (3, 4)}, constant=(1,)),
    *rows("Embedding", [np.array([[0.0, 5], [-1, 1]]), X], {"input_dim": 3, "output_dim": 4}, constant=(0,)),
    *rows("one_hot", [np.array([[0.0, 3], [2, 1]])], {"depth": 4, **HOT}, constant=(0,)),
    *rows("one_hot", [np.array([-1.0, 1, 5])], {"depth": 3, "dtype": "float64"}, constant=(0,)),
    *rows("one_hot", [np.array([-1, 1, 5], "int32")], {"depth": 3, "dtype": "float64"}),
    *rows("one_hot", [np.array([-1, 1, 5], "int8")], {"depth": 3, "dtype": "float64"}),
    *rows("one_hot", [np.array([1, 255], "uint8")], {"depth": 300, "on_value": 2}),
]


def transposed(a: bool, b: bool) -> list[Any]:
    x, y, how = normal(*((4, 3) if a else (3, 4))), normal(*((5, 4) if b else (4, 5))), {"transpose_a": a}
    batch, how = [np.stack([each, each + 1]) for each in (x, y)], {**how, "transpose_b": b}
    return [
        *rows("dot", [x, y], how),
        *rows("batch_dot", batch, how),
        *rows("_linalg_gemm2", batch, how, {**how, "alpha": 0.5}),
    ]


def attention(x: Any) -> Any:
    weights = S.softmax(S.contrib.interleaved_matmul_selfatt_qk(x, heads=2))
    return S.contrib.interleaved_matmul_selfatt_valatt(x, weights, heads=2)


PRODUCTS = [
    *itertools.chain.from_iterable(transposed(*each) for each in itertools.product(BOOL, BOOL)),
    *rows("dot", [np.arange(3.0), np.arange(3.0)]),  # of which MXNet makes a number with an axis
    *rows("dot", [normal(2, 3, 4), normal(4, 5, 6)]),
    *rows("dot", [normal(4, 2, 3), normal(4, 5)], {"transpose_a": True}),
    *rows("dot", [normal(2, 4), normal(5, 3, 4)], {"transpose_b": True}),
    *rows("FullyConnected", [CUBE, normal(5, 12), normal(5)], {"num_hidden": 5}),
    *rows("FullyConnected", [CUBE, normal(5, 12)], {"num_hidden": 5, "no_bias": True}),
    *rows("FullyConnected", [CUBE, normal(5, 4), normal(5)], {"num_hidden": 5, "flatten": False}),
    *rows("FullyConnected", [normal(3), normal(5, 1), normal(5)], {"num_hidden": 5}),
    *rows(attention, [normal(5, 3, 24).astype("float32")], tolerance=1e-4),  # MXNet has no other type
]


def convolutions(name: str, axes: int, groups: int, **values: Any) -> list[Any]:
    """Return rows with and without bias; the last sizes of `values` are cut to a number of axes."""
    made = []
    for chosen in some(6, no_bias=BOOL, **values):
        chosen["adj"] = chosen.get("adj", 0) % chosen["stride"]
        no_bias = chosen.pop("no_bias")
        sizes = {n: (value,) * axes for n, value in chosen.items() if n != "adj" or name == "Deconvolution"}
        filters = (6, 4 // groups) if name == "Convolution" else (4, 6 // groups)
        arrays = (
            normal(2, 4, 7, 6, 5)[(..., *[0] * (3 - axes))],
            normal(*filters, *sizes["kernel"]),
            normal(6),
        )
        attributes = {"num_filter": 6, "num_group": groups, "no_bias": no_bias, **sizes}
        made += rows(name, arrays[: 3 - no_bias], attributes)
    return made


SIZES = {"kernel": [1, 2, 3], "stride": [1, 2], "pad": [0, 1, 2], "dilate": [1, 2]}
TURNED = {"kernel": [2, 3, 4], "stride": [1, 2, 3], "pad": [0, 1], "adj": [0, 1, 2]}
SHAPED = {"kernel": (4, 4), "stride": (2, 2), "target_shape": (11, 13), "num_filter": 5, "no_bias": True}
CONVOLUTIONS = [
    *itertools.chain.from_iterable(
        convolutions(name, axes, groups, **values)
        for name, values, most in (("Convolution", SIZES, 3), ("Deconvolution", TURNED, 2))
        for axes in range(1, most + 1)
        for groups in (1, 2)
    ),
    *rows("Deconvolution", [normal(2, 3, 5, 6), normal(3, 5, 4, 4)], SHAPED),
]


def is_refused(*, kernel: Any, stride: Any, pad: Any, **others: Any) -> bool:
    """Whether a mean of a map of 8 x 7 would begin beyond it, which torch does not compute."""
    axes = zip((8, 7), kernel, stride, pad)
    beyond = any(-(-(n + 2 * p - k) // s) * s >= n + p for n, k, s, p in axes)
    return beyond and (others["pooling_convention"], others["pool_type"]) == ("full", "avg")


PAIRS = list(itertools.product([1, 2, 3], repeat=2))
POOLED = some(
    40, kernel=PAIRS, stride=PAIRS, pad=[(0, 0), (0, 1)], pool_type=["max", "avg"],
    pooling_convention=["valid", "full"], count_include_pad=BOOL,
)  # fmt: skip
POOLED = [each for each in POOLED if each["kernel"][1] > 1 or not any(each["pad"])]
RESIZE = "_contrib_BilinearResize2D"  # of which MXNet computes the places in float32
MAPPED = [
    *rows("Pooling", [normal(2, 3, 8, 7)], *[each for each in POOLED if not is_refused(**each)]),
    *rows("Pooling", [normal(2, 3, 6)], *grid(kernel=[2], pool_type=["max", "avg"], global_pool=BOOL)),
    *rows("Pooling", [MAPS], *grid(kernel=[(2, 2)], pool_type=["max", "avg"], global_pool=BOOL)),
    *rows("Pooling", [MAPS[None]], *grid(kernel=[(2, 2, 2)], pool_type=["max", "avg"], global_pool=BOOL)),
    *rows("Pooling", [np.zeros((1, 1, 4, 4))], {"kernel": (2, 2), "stride": (2, 2)}),
    *rows("_contrib_AdaptiveAvgPooling2D", [normal(2, 3, 7, 5)], *grid(output_size=[(3, 2), 2, 1])),
    *rows("UpSampling", [MAPS], {"scale": 2, "sample_type": "nearest"}),
    *rows(RESIZE, [MAPS], {"height": 7, "width": 9, "align_corners": False}, tolerance=1e-5),
    *rows(RESIZE, [MAPS], {"scale_height": 1.5, "scale_width": 2.0}, tolerance=1e-5),
    # MXNet's gradient with another map's size writes where it must not
    *rows(RESIZE, [MAPS, normal(1, 1, 6, 3)], {"mode": "like"}, constant=(0, 1), tolerance=1e-5),
]

GAMMA, BETA, RUNNING = normal(3), normal(3, seed=1), [normal(3), np.ones(3)]
CHANNELS, FLOATS = [GAMMA, BETA, *RUNNING], [normal(2, 3, 4, 3), GAMMA, BETA, BETA, GAMMA**2]
FLOATS = [each.astype("float32") for each in FLOATS]
LEARNED = {"fix_gamma": False, "momentum": 0.75}
SYNC = {"key": "a", "momentum": 0.5, "fix_gamma": False}
LARGE = [100 * normal(samples, 3, 1, 1) for samples in (1, 2)]  # 1 / sqrt(eps) would show every rounding
NORMS = [
    *rows("LayerNorm", [normal(2, 5, 3), GAMMA, BETA], {"axis": -1, "eps": 2**-10}),
    *rows("LayerNorm", [normal(2, 3, 5), GAMMA, BETA], {"axis": 1, "eps": 2**-10}),
    *rows("GroupNorm", [normal(2, 6, 4, 3), GAMMA, BETA], {"num_groups": 3, "eps": 2**-10}),
    *rows("L2Normalization", [MAPS], *grid(mode=["instance", "channel", "spatial"])),
    *rows("InstanceNorm", FLOATS[:3], {"eps": 2**-10}, tolerance=1e-4),
    *rows("_contrib_SyncBatchNorm", FLOATS, SYNC, constant=(3, 4), tolerance=1e-4),
    # the running variance is divided by n
    *rows("BatchNorm", [normal(4, 3, 5, 5), *CHANNELS], LEARNED, constant=(3, 4)),
    *rows("BatchNorm", [normal(4, 3, 5, 5), *CHANNELS], LEARNED, constant=(3, 4), training=False),
    *rows("BatchNorm", [MAPS, *CHANNELS], {**LEARNED, "use_global_stats": True}, constant=(3, 4)),
    *rows("BatchNorm", [normal(4, 2, 5, 3), *CHANNELS], {**LEARNED, "axis": 3}, constant=(3, 4)),
]
OF_ONE_VALUE = [  # torch refuses most norms whose mean and variance are of a single value
    *rows("BatchNorm", [normal(1, 3), *CHANNELS], LEARNED, constant=(3, 4)),
    *rows("BatchNorm", [normal(1, 3, 1, 1), *CHANNELS], LEARNED, constant=(3, 4)),
    *rows("BatchNorm", [normal(1, 1, 3), *CHANNELS], {**LEARNED, "axis": 2}, constant=(3, 4)),
    *rows("BatchNorm", [normal(1, 3), np.ones(3), BETA, *RUNNING], {"momentum": 0.5}, constant=(3, 4)),
    *rows("InstanceNorm", [LARGE[0].astype("float32"), *FLOATS[1:3]]),
    *rows("InstanceNorm", [LARGE[1].astype("float32"), *FLOATS[1:3]]),
    *rows("GroupNorm", [LARGE[0], GAMMA, BETA], {"num_groups": 3}),
    *rows("GroupNorm", [LARGE[1], GAMMA, BETA], {"num_groups": 3}),
]

LENGTHS = np.array([[1, 4, 2, 4, 3]] * 3, "int32")
ACTIVATIONS = [
    *rows("softmax log_softmax", [normal(3, 4, 5)], {}, {"axis": 1}, {"temperature": 2.0}),
    *rows("softmax", [normal(3, 4, 5), LENGTHS], {"use_length": True, "axis": 1}),
    *rows("Activation", [X], *grid(act_type=["relu", "sigmoid", "tanh", "softrelu", "softsign"])),
    *rows("LeakyReLU", [X], *grid(act_type=["leaky", "elu", "gelu"]), tolerance=1e-7),
    *rows("LeakyReLU", [X], {"act_type": "selu"}, constant=(0,), tolerance=1e-7),  # MXNet's gradient is wrong
    *rows("LeakyReLU", [CUBE, normal(3)], {"act_type": "prelu"}, tolerance=FLOAT32),
    *rows("LeakyReLU", [CUBE, normal(1)], {"act_type": "prelu"}, tolerance=FLOAT32),
]


def along(axis: int) -> list[Any]:
    """Return rows for sequences of several lengths, which are rounded towards zero."""
    x, length, used = normal(*((3, 4, 2) if axis else (4, 3, 2))), np.array([1.5, 4, 2]), {"axis": axis}
    used["use_sequence_length"] = True
    return [
        *rows("SequenceMask", [x], {"axis": axis}),
        *rows("SequenceLast", [x], {"axis": axis}, constant=(0,)),  # MXNet's gradient is wrong
        *rows("SequenceMask", [x, length], used, {**used, "value": -1}, constant=(1,)),
        *rows("SequenceLast", [x, length], used, constant=(1,)),
        *(rows("SequenceReverse", [x, length], used, constant=(1,)) if axis == 0 else []),
    ]


def recurrent(mode: str, gates: int, both: bool) -> list[Any]:
    ways = 1 + both
    count = ways * gates * 5 * ((3 + 5 + 2) + (5 * ways + 5 + 2))
    initial = [normal(2 * ways, 2, 5, seed=i) for i in range(1 + (mode == "lstm"))]
    sizes = {"mode": [mode], "state_size": [5], "num_layers": [2], "bidirectional": [both]}
    arrays = [normal(4, 2, 3), normal(count) * 0.3, *initial]
    return rows("RNN", arrays, *grid(**sizes, state_outputs=BOOL), tolerance=FLOAT32)


def without_states(x: Any, w: Any) -> Any:
    return S.RNN(x, w, S.zeros((1, 0, 5), dtype="float64"), mode="gru", state_size=5, num_layers=1)


def ctc(blank: str, steps: int, given: tuple[str, ...]) -> list[Any]:
    end = 0 if blank == "first" else -1
    labels = np.array([[1, 2, 2], [3, end, end], [2, 1, end]], "float32")
    lengths = {"data": np.float32([steps, steps - 1, steps]), "label": np.float32([3, 1, 2])}
    used = {f"use_{each}_lengths": each in given for each in lengths}

    def loss(x: Any, y: Any, *others: Any) -> Any:
        named = {f"{name}_lengths": each for name, each in zip(given, others)}
        return S.CTCLoss(x, y, **named, **used, blank_label=blank)

    arrays = [normal(steps, 3, 5).astype("float32"), labels, *[lengths[each] for each in given]]
    # MXNet's gradients of a loss of 0, which has too few steps, are random numbers
    return rows(loss, arrays, constant=range(0 if steps == 3 else 1, len(arrays)), tolerance=1e-5)


GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
USED = [(), ("data",), ("label",), ("data", "label")]
SEQUENCES = [
    *along(0), *along(1),
    *rows("SequenceReverse", [CUBE]),
    *rows(without_states, [normal(4, 2, 3), normal(3 * 5 * 10)]),
    *[each for mode, gates in GATES.items() for both in BOOL for each in recurrent(mode, gates, both)],
    *[each for blank in ("first", "last") for steps in (6, 3) for u in USED for each in ctc(blank, steps, u)],
]  # fmt: skip


def boxes(*shape: int, seed: int = 0) -> np.ndarray:
    """Return boxes by their corners."""
    random = np.random.RandomState(seed)
    low = random.rand(*shape, 2)
    return np.concatenate([low, low + 0.5 * random.rand(*shape, 2)], -1)


def regions(low: Any, size: Any) -> np.ndarray:
    """Return regions of two maps."""
    return np.concatenate([np.random.RandomState(2).randint(0, 2, (5, 1)), low, low + size], 1)


RANDOM = np.random.RandomState(12)
SCORES = RANDOM.permutation(24).reshape(2, 12, 1) / 24
DETECTED = np.concatenate([RANDOM.randint(0, 3, (2, 12, 1)), SCORES, boxes(2, 12)], -1)
CHAIN = np.array([[0, 1 - i / 10, i, 0, i + 3, 1] for i in range(8)])
LOW, LENGTH = RANDOM.rand(2, 5, 2)
STDS = {"std0": [0.125], "std1": [0.25], "std2": [0.5], "std3": [0.5]}
NMS = {
    "overlap_thresh": [0.1, 0.3, 0.5], "valid_thresh": [0.0, 0.3], "topk": [-1, 5, 100],
    "force_suppress": BOOL, "id_index": [-1, 0],
}  # fmt: skip
POOLS = {"pooled_size": [(3, 2)], "spatial_scale": [0.5], "sample_ratio": [1, 2, 3, 5], "aligned": BOOL}
INSIDE = regions(LOW * 8, LENGTH * 6)
OUTSIDE = regions(LOW * 24 - 3, LENGTH * 9)  # for which MXNet's gradient writes where it must not
DETECTION = [
    *rows("_contrib_box_iou", [boxes(2, 3), boxes(4, seed=1)], *grid(format=["corner", "center"])),
    *rows("_contrib_box_iou", [boxes(3) * 0, boxes(3)], *grid(format=["corner", "center"])),
    *rows(
        "_contrib_box_decode", [normal(2, 5, 4) * 0.3, boxes(1, 5)],
        *grid(format=["corner", "center"], clip=[-1.0, 0.125], **STDS), constant=(0, 1)),
    *rows("_contrib_box_nms", [DETECTED], *some(25, **NMS)),
    *rows("_contrib_box_nms", [CHAIN], {"overlap_thresh": 0.4}),
    *rows("_contrib_ROIAlign", [normal(2, 3, 8, 9), INSIDE], *grid(**POOLS), constant=(1,)),
    *rows("_contrib_ROIAlign", [normal(2, 3, 8, 9), OUTSIDE], *grid(**POOLS), constant=(0, 1)),
]  # fmt: skip

ROWS = [
    *ELEMENTWISE, *REDUCTIONS, *SHAPES, *INDEXING, *PRODUCTS, *CONVOLUTIONS, *MAPPED, *NORMS, *OF_ONE_VALUE,
    *ACTIVATIONS, *SEQUENCES, *DETECTION,
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS)
def test_an_operator_is_that_of_mxnet(row: Row) -> None:
    assert_agree(row.make, *row.arrays, **row.options)


def operators_of(symbol: Any) -> set[str]:
    return {node["op"] for node in json.loads(symbol.tojson())["nodes"]}


TESTED_BELOW = {"Dropout", "amp_cast", "amp_multicast"} | {name for name in OPERATORS if "_random_" in name}


def test_the_table_has_every_operator() -> None:
    symbols = [each.values[0].make(*map(S.var, "abcde"[: len(each.values[0].arrays)])) for each in ROWS]
    assert set(OPERATORS) - TESTED_BELOW == set().union(*map(operators_of, symbols)) - {"null"}


def test_an_operator_without_attributes_ignores_those_that_it_is_given() -> None:
    for name, function in OPERATORS.items():
        if not set(table(function)) - GIVEN:
            found = get_operator_arguments(name)
            own = {each for each, kind in zip(found.names, found.types) if "NDArray" not in kind}
            assert own <= IGNORED, name
