"""A lowered graph computes its products in bfloat16, all else in float32, where the CPU can."""

from typing import Any

import numpy as np
import pytest

from multifit.gluon.graph import lower as precisions
from multifit.gluon.graph.lower import Rules, lower, precision_of

from .graphs import computed, random_graphs

import mxnet as mx  # isort: skip

F = mx.sym
# bfloat16 has 8 significant bits: rounding to nearest is wrong by at most 2^-9 of the number.
ROUNDING = 2.0**-9
SHAPES = {"x": (8, 6), "fc_weight": (4, 6), "fc_bias": (4,), "fd_weight": (4, 6), "fd_bias": (4,)}
ARRAYS = {name: np.random.RandomState(0).randn(*shape) for name, shape in SHAPES.items()}


def to_bfloat16(*symbols: Any) -> tuple[list[Any], int]:
    return lower(symbols, "bfloat16", precisions.bfloat16_rules())


def dtypes(symbol: Any) -> dict[str, str]:
    """Return the dtype of every node's outputs, as MXNet infers it for float32 variables."""
    inner = symbol.get_internals()
    types = inner.infer_type(**dict.fromkeys(symbol.list_inputs(), "float32"))[1]
    kinds = [np.dtype(type_) for type_ in types]
    return {name: "bfloat16" if kind.names else kind.name for name, kind in zip(inner.list_outputs(), kinds)}


def casts(*symbols: Any) -> int:
    return F.Group(symbols).tojson(remove_amp_cast=False).count('"amp_cast"')


def dense(data: Any, name: str, size: int = 4) -> Any:
    return F.FullyConnected(data, num_hidden=size, name=name)


def chain() -> Any:
    """A product, a layer that takes either precision, and one that needs float32."""
    return F.log_softmax(F.Activation(dense(F.var("x"), "fc"), act_type="relu", name="act"), name="soft")


def test_products_and_the_layers_between_them_are_lowered():
    (lowered,), count = to_bfloat16(chain())
    types = dtypes(lowered)
    assert types["fc_output"] == types["act_output"] == "bfloat16"
    assert types["soft_output"] == types["x"] == types["fc_weight"] == "float32" and count == 2
    assert lowered.list_inputs() == chain().list_inputs()
    assert lowered.list_outputs() == chain().list_outputs()


IN_FLOAT16 = Rules(low=("tanh", "softmax", "elemwise_mul"), either=("relu", "elemwise_add", "transpose"))


def test_a_graph_keeps_its_inputs_outputs_and_dtype():
    counts = set()
    for seed, graph, values in random_graphs(30):
        symbol = F.Group(graph(F, [F.var(name) for name in values])[4:])
        results, count = lower(list(symbol), "float16", IN_FLOAT16)
        lowered = F.Group(results)
        assert lowered.list_inputs() == symbol.list_inputs()
        assert len(lowered.list_outputs()) == len(symbol.list_outputs())
        if not count:
            assert lowered.tojson(remove_amp_cast=False) == symbol.tojson(remove_amp_cast=False)
        arrays = {name: values[name] for name in symbol.list_inputs()}
        for one, other in zip(computed(lowered, arrays, ())[0], computed(symbol, arrays, ())[0]):
            assert one.dtype == np.float32
            scale = 1 + np.abs(other).max()
            np.testing.assert_allclose(one / scale, other / scale, atol=0.02, err_msg=str(seed))
        counts.add(count)
    assert {0, 1, 2} <= counts


WITHOUT_KERNELS = {  # dot raises in bfloat16; most of the others take ten times as long
    "dot": lambda a, b: F.dot(a, b, transpose_b=True),
    "broadcast": lambda a, b: F.broadcast_add(a, b),
    "softrelu": lambda a, b: F.Activation(a, act_type="softrelu") + b,
    "elu": lambda a, b: F.LeakyReLU(a, act_type="elu") + b,
    "prelu": lambda a, b: F.LeakyReLU(a, F.var("slope", shape=(4,)), act_type="prelu") + b,
    "rrelu": lambda a, b: F.LeakyReLU(a, act_type="rrelu")[0] + b,
    "one input in float32": lambda a, b: F.concat(a, b * 2, dim=1),
    "in no list": lambda a, b: F.cumsum(a, axis=1) + b,
}


@pytest.mark.parametrize("operator", WITHOUT_KERNELS)
def test_operators_without_a_kernel_stay_float32(operator):
    """And run, where the CPU can."""
    x = F.var("x")
    graph = WITHOUT_KERNELS[operator](dense(x, "fc"), dense(x, "fd"))
    (lowered,), count = to_bfloat16(graph)
    types = dtypes(lowered)
    in_bfloat16 = {name for name, kind in types.items() if kind == "bfloat16" and "bfloat16" not in name}
    assert count == 2 and in_bfloat16 == {"fc_output", "fd_output"}
    if precisions.cpu_supports_bfloat16() and operator != "rrelu":
        arrays = {**ARRAYS, "slope": np.ones(4)}
        ((expected,), _), ((values,), _) = (computed(each, arrays, ()) for each in (graph, lowered))
        np.testing.assert_allclose(values, expected, rtol=8 * ROUNDING, atol=64 * ROUNDING)


def test_there_is_no_cast_between_the_layers_of_a_convolutional_net():
    x = F.Convolution(F.var("x"), kernel=(3, 3), num_filter=4, pad=(1, 1), name="conv")
    y = F.Activation(F.BatchNorm(x, name="norm", fix_gamma=False), act_type="relu", name="act")
    halves = [F.Pooling(each, kernel=(2, 2), stride=(2, 2)) for each in (x + y, y)]
    graph = F.Convolution(F.concat(*halves, dim=1, name="join"), kernel=(1, 1), num_filter=2, name="end")
    (lowered,), count = to_bfloat16(graph)
    types = dtypes(lowered)
    for name in ("conv", "norm", "act", "join", "end"):
        assert types[f"{name}_output"] == "bfloat16"
    assert types["norm_gamma"] == types["norm_moving_mean"] == "float32"
    assert count == 8 and lowered.list_auxiliary_states() == graph.list_auxiliary_states()
    assert casts(lowered) == 1 + 2 + 2 + 1  # the input, the parameters of two products, and the output


def test_variables_are_those_of_the_rest_of_the_graph():
    """A net's input may be a loss's label too, and MXNet takes two variables of one name for two inputs."""
    x, weight = F.var("x"), F.var("weight")
    (lowered,), _ = to_bfloat16(F.FullyConnected(x, weight, num_hidden=6, no_bias=True))
    assert (lowered - x + weight.sum()).list_inputs() == ["x", "weight"]


def test_a_shared_array_is_cast_once():
    x, weight = F.var("x"), F.var("weight")
    graph = [F.FullyConnected(x, weight, num_hidden=6, no_bias=True, name=name) for name in "ab"]
    lowered, count = to_bfloat16(*graph)
    assert count == 2 and casts(*lowered) == 2 + 2


def test_outputs_that_are_several_variables_or_have_no_inputs():
    x = F.var("x")
    parts = F.split(dense(x, "fc"), num_outputs=2, name="parts")
    line = F.arange(3, name="line")  # has no inputs, like a variable
    lowered, _ = to_bfloat16(dense(x, "fd"), x, parts, parts[1], line + 1, line)
    names = [symbol.list_outputs() for symbol in lowered]
    assert names[1:4] == [["x"], ["parts_output0", "parts_output1"], ["parts_output1"]]
    assert list(map(len, names)) == [1, 1, 2, 1, 1, 1] and names[-1] == ["line_output"]
    assert [symbol.name for symbol in to_bfloat16(x)[0]] == ["x"]


def test_the_rules_name_operators_of_mxnet():
    rules = precisions.bfloat16_rules()
    for operator in {*rules.low, *rules.either, *rules.first_input_only, *rules.float32_if}:
        assert mx.operator.get_operator_arguments(operator).narg > 0, operator


@pytest.mark.parametrize(("static", "parts"), [(False, 9), (True, 0), (True, 9)])
def test_accumulated_gradients_are_complete(static, parts):
    """The gradient of amp_cast overwrites what it should be added to; up to ten operators take one array.

    Casts and copies run in bfloat16 on every CPU.
    """
    features = F.var("x") * 1 if parts else F.var("x")
    others = [features * number for number in range(1, parts + 1)]
    copied = F.identity(features, name="copied")
    (lowered,), _ = lower([F.add_n(copied, *others)], "bfloat16", Rules(low=("_copy",), either=()))
    x = mx.nd.ones((2, 3))
    x.attach_grad("add")
    for batch in (1, 2, 3):
        with mx.autograd.record():
            result = mx.nd.CachedOp(lowered, [("static_alloc", static)])(x)
        result.backward()
        assert (x.grad.asnumpy() == batch * (1 + sum(range(parts + 1)))).all()


def test_the_answer_is_that_of_onednn(monkeypatch):
    supported = precisions.cpu_supports_bfloat16()
    product = mx.sym.FullyConnected(mx.sym.var("x"), mx.sym.var("w"), num_hidden=1, no_bias=True)
    (lowered,), _ = lower([product], "bfloat16", Rules(low=("FullyConnected",), either=()))
    try:
        result = mx.nd.CachedOp(lowered)(mx.nd.ones((1, 2)), mx.nd.ones((1, 2))).asnumpy()
    except mx.base.MXNetError:
        assert not supported
    else:
        assert supported and result == 2
    failing = mx.sym.dot(mx.sym.var("x"), mx.sym.ones((7, 7)))
    for graphs, answer in (([], True), ([failing], False)):  # as on a CPU that can, and on one that cannot
        monkeypatch.setattr(precisions, "lower", lambda symbols, *_, graphs=graphs: (graphs or symbols, 0))
        assert precisions.cpu_supports_bfloat16.__wrapped__() is answer


CPUS, GPUS = [mx.cpu(0), mx.cpu(1)], [mx.gpu(0), mx.gpu(1)]  # also on a machine without a GPU
CONTEXT = 'on gpu(0); give precision="float32", or a context of CPUs'
UNUSABLE = [  # precision, contexts, whether the CPU can, and the message
    ("bfloat16", CPUS, False, '"bfloat16", which this CPU cannot compute: it lacks AVX512; give'),
    ("bfloat16", GPUS, True, CONTEXT), ("bfloat16", [mx.cpu(1), *GPUS], True, CONTEXT),
    ("bfloat", CPUS, True, '\'bfloat\' (did you mean "bfloat16"?); valid are "float32", "bfloat16"'),
    ("float16", CPUS, True, '"float16", which MXNet cannot train in; give precision="bfloat16" or'),
    (16, CPUS, True, 'precision is 16; valid are "float32"'),
]  # fmt: skip


@pytest.mark.parametrize(("name", "contexts", "supported", "message"), UNUSABLE)
def test_a_precision_that_cannot_be_used_is_an_error(name, contexts, supported, message, monkeypatch):
    monkeypatch.setattr(precisions, "cpu_supports_bfloat16", lambda: supported)
    with pytest.raises(ValueError, match="^precision is ") as error:
        precision_of(name, contexts)
    assert message in str(error.value)
    monkeypatch.setattr(precisions, "cpu_supports_bfloat16", lambda: True)
    assert precision_of("bfloat16", CPUS).rules and precision_of("bfloat16", CPUS).name == "bfloat16"
    assert precision_of("float32", GPUS).rules is None
