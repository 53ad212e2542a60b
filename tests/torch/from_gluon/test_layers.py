"""Layers, in MXNet and translated."""

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from multifit.gluon.compat import mx
from multifit.torch.from_gluon.operators.layers import bilinear_resize
from multifit.torch.from_gluon.translate import translate
from tests.torch.from_gluon.agreement import assert_agree, normal

S = mx.sym
few = settings(max_examples=10, deadline=None, derandomize=True)


@few
@given(
    axes=st.integers(1, 3),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 2),
    pad=st.integers(0, 2),
    dilate=st.integers(1, 2),
    groups=st.sampled_from([1, 2]),
    no_bias=st.booleans(),
)
def test_convolution(axes, kernel, stride, pad, dilate, groups, no_bias):
    options = {"kernel": kernel, "stride": stride, "pad": pad, "dilate": dilate}
    options = {name: (value,) * axes for name, value in options.items()}
    options.update(num_filter=4, num_group=groups, no_bias=no_bias)
    arrays = (
        normal(2, 4, 7, 6, 5)[(..., *[0] * (3 - axes))],
        normal(4, 4 // groups, *[kernel] * axes),
        normal(4),
    )
    assert_agree(partial(S.Convolution, **options), *arrays[: 2 if no_bias else 3])


@few
@given(
    axes=st.integers(1, 2),
    kernel=st.integers(2, 4),
    stride=st.integers(1, 3),
    pad=st.integers(0, 1),
    groups=st.sampled_from([1, 2]),
    no_bias=st.booleans(),
    data=st.data(),
)
def test_deconvolution(axes, kernel, stride, pad, groups, no_bias, data):
    adj = data.draw(st.integers(0, stride - 1))
    options = {"kernel": kernel, "stride": stride, "pad": pad, "adj": adj}
    options = {name: (value,) * axes for name, value in options.items()}
    options.update(num_filter=6, num_group=groups, no_bias=no_bias)
    arrays = normal(2, 4, 5, 3)[(..., *[0] * (2 - axes))], normal(4, 6 // groups, *[kernel] * axes), normal(6)
    assert_agree(partial(S.Deconvolution, **options), *arrays[: 2 if no_bias else 3])


def test_deconvolution_to_a_shape():
    options = {"kernel": (4, 4), "stride": (2, 2), "target_shape": (11, 13), "num_filter": 5, "no_bias": True}
    assert_agree(partial(S.Deconvolution, **options), normal(2, 3, 5, 6), normal(3, 5, 4, 4))


@settings(few, max_examples=40)
@given(
    kernel=st.tuples(*[st.integers(1, 3)] * 2),
    stride=st.tuples(*[st.integers(1, 3)] * 2),
    pad=st.integers(0, 1),
    kind=st.sampled_from(["max", "avg"]),
    convention=st.sampled_from(["valid", "full"]),
    include=st.booleans(),
)
def test_pooling(kernel, stride, pad, kind, convention, include):
    pad = tuple(min(pad, size // 2) for size in kernel)
    options = {"kernel": kernel, "stride": stride, "pad": pad, "pool_type": kind}
    options.update(pooling_convention=convention, count_include_pad=include)
    begins = [-(-(n + 2 * p - k) // s) * s for n, k, s, p in zip((8, 7), kernel, stride, pad)]
    if (convention, kind) == ("full", "avg") and any(at >= n + p for at, n, p in zip(begins, (8, 7), pad)):
        with pytest.raises(ValueError, match="a mean begins beyond the map"):
            assert_agree(partial(S.Pooling, **options), normal(2, 3, 8, 7))
    else:
        assert_agree(partial(S.Pooling, **options), normal(2, 3, 8, 7))


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("kind", ["max", "avg"])
def test_pooling_of_other_axes(kind, axes):
    x = normal(2, 3, *[6, 5, 4][:axes])
    assert_agree(partial(S.Pooling, kernel=(2,) * axes, pool_type=kind), x)
    assert_agree(partial(S.Pooling, kernel=(2,) * axes, pool_type=kind, global_pool=True), x)


@pytest.mark.parametrize("size", [(3, 2), 2, 1])
def test_adaptive_pooling(size):
    assert_agree(partial(S.contrib.AdaptiveAvgPooling2D, output_size=size), normal(2, 3, 7, 5))


def test_resizing():
    x = normal(2, 3, 4, 5)
    assert_agree(partial(S.UpSampling, scale=2, sample_type="nearest"), x)
    resize = S.contrib.BilinearResize2D
    # MXNet computes the places in float32
    assert_agree(partial(resize, height=7, width=9, align_corners=False), x, tolerance=1e-5)
    assert_agree(partial(resize, scale_height=1.5, scale_width=2.0), x, tolerance=1e-5)
    # MXNet's gradient with another map's size writes where it must not
    like = partial(resize, mode="like")
    assert_agree(lambda x, y: like(x, y), x, normal(1, 1, 6, 3), constant=(0, 1), tolerance=1e-5)


@pytest.mark.parametrize("scale", [0.1, 0.29, 1 / 3, 0.57, 1.1, 2.2])
def test_resizing_by_a_scale_makes_the_same_sizes(scale):
    symbol = S.contrib.BilinearResize2D(S.var("x"), scale_height=scale, scale_width=scale)
    for size in [*range(10, 400, 5), 512, 1024]:
        ours = bilinear_resize(
            torch.empty(1, 1, size, 1024, device="meta"), scale_height=scale, scale_width=scale
        )
        assert ours.shape == symbol.infer_shape(x=(1, 1, size, 1024))[1][0]


def test_resizing_by_a_scale_is_compiled_for_several_sizes():
    shrink = partial(bilinear_resize, scale_height=0.29, scale_width=0.7)
    compiled = torch.compile(shrink, backend="eager", dynamic=True)
    for size in (100, 200, 90):
        x = torch.ones(1, 1, size, 50)
        assert compiled(x).shape == shrink(x).shape


@pytest.mark.parametrize("axis", [-1, 1])
def test_layer_norm(axis):
    x = normal(2, 5, 4)
    gamma = normal(x.shape[axis])
    assert_agree(partial(S.LayerNorm, axis=axis, eps=2**-10), x, gamma, gamma + 1)


def test_other_norms():
    x, gamma, beta = normal(2, 6, 4, 3), normal(6), normal(6, seed=1)
    assert_agree(partial(S.GroupNorm, num_groups=3, eps=2**-10), x, gamma[:3], beta[:3])
    arrays = [each.astype("float32") for each in (x, gamma, beta)]
    assert_agree(partial(S.InstanceNorm, eps=2**-10), *arrays, tolerance=1e-4)
    for mode in ("instance", "channel", "spatial"):
        assert_agree(partial(S.L2Normalization, mode=mode), x)
    arrays = [each.astype("float32") for each in (x, gamma, beta, beta, gamma**2)]
    sync = partial(S.contrib.SyncBatchNorm, key="a", momentum=0.5, fix_gamma=False)
    assert_agree(lambda *x: sync(*x), *arrays, constant=(3, 4), tolerance=1e-4)


def test_softmax():
    x, length = normal(3, 4, 5), np.array([[1, 4, 2, 5, 3]] * 3, "int32")
    for name in ("softmax", "log_softmax"):
        for options in ({}, {"axis": 1}, {"temperature": 2.0}):
            assert_agree(partial(getattr(S, name), **options), x)
    assert_agree(lambda x, n: S.softmax(x, n, use_length=True, axis=1), x, np.minimum(length, 4))


@pytest.mark.parametrize("kind", ["relu", "sigmoid", "tanh", "softrelu", "softsign"])
def test_activation(kind):
    assert_agree(partial(S.Activation, act_type=kind), normal(3, 4))


@pytest.mark.parametrize("kind", ["leaky", "elu", "selu", "gelu"])
def test_leaky_activation(kind):
    # MXNet keeps constants in float32.
    wrong = (0,) if kind == "selu" else ()  # MXNet's gradient is
    assert_agree(partial(S.LeakyReLU, act_type=kind), normal(3, 4), constant=wrong, tolerance=1e-7)


def test_learned_slopes():
    for gamma in (normal(3), normal(1)):
        prelu = partial(S.LeakyReLU, act_type="prelu")
        assert_agree(lambda x, g, prelu=prelu: prelu(x, g), normal(2, 3, 4), gamma, tolerance=1e-6)


def run(symbol, training, x):
    """Return the translation's output."""
    return translate(symbol.tojson(), ["x"], {}, training)(x)[0]


def test_dropout():
    x = torch.ones(200, 50)
    dropped = {
        (training, options): run(S.Dropout(S.var("x"), p=0.25, **dict(options)), training, x)
        for training in (True, False)
        for options in ((), (("mode", "always"),), (("axes", (1,)),))
    }
    for (training, options), out in dropped.items():
        if training or options == (("mode", "always"),):
            assert out.unique().tolist() == [0, pytest.approx(4 / 3)]
            assert out.mean().item() == pytest.approx(1, abs=0.1)
            assert (out.std(1).max().item() == 0) == (options == (("axes", (1,)),))
        else:
            assert out is x
    assert run(S.Dropout(S.var("x"), p=0), True, x) is x


@pytest.mark.parametrize("states", [True, False])
@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize("mode", ["lstm", "gru", "rnn_tanh", "rnn_relu"])
def test_recurrent_layers(mode, both, states):
    gates, ways = {"lstm": 4, "gru": 3}.get(mode, 1), 1 + both
    count = ways * gates * 5 * ((3 + 5 + 2) + (5 * ways + 5 + 2))
    initial = [normal(2 * ways, 2, 5, seed=i) for i in range(2 if mode == "lstm" else 1)]
    options = {"mode": mode, "state_size": 5, "num_layers": 2, "bidirectional": both, "state_outputs": states}
    assert_agree(
        lambda *x: list(S.RNN(*x, **options)), normal(4, 2, 3), normal(count) * 0.3, *initial, tolerance=1e-6
    )


@pytest.mark.parametrize("training", [False, True])
def test_a_recurrent_layer_that_evaluates_has_gradients(monkeypatch, training):
    modes, lstm = [], torch.lstm

    def watched(*arguments):
        modes.append(arguments[5:7])
        return lstm(*arguments)

    monkeypatch.setattr(torch, "lstm", watched)
    net = S.RNN(*map(S.var, "xwhc"), mode="lstm", state_size=2, num_layers=2, p=0.5)
    module = translate(net.tojson(), [*"xwhc"], {}, training)
    arrays = [normal(4, 3, 2), normal(2 * 4 * 2 * (2 + 2 + 2)), normal(2, 3, 2), normal(2, 3, 2)]
    tensors = [torch.from_numpy(each) for each in arrays]
    module(*tensors)
    with torch.no_grad():
        module(*tensors)
    assert modes == ([(0.5, True)] * 2 if training else [(0.0, True), (0.0, False)])


def test_a_recurrent_layer_without_states():
    def net(x, w):
        return S.RNN(x, w, S.zeros((1, 0, 5), dtype="float64"), mode="gru", state_size=5, num_layers=1)

    assert_agree(net, normal(4, 2, 3), normal(3 * 5 * 10))


def test_attention():
    heads = {"heads": 2}
    attend = S.contrib

    def to_itself(x):
        weights = S.softmax(attend.interleaved_matmul_selfatt_qk(x, **heads))
        return attend.interleaved_matmul_selfatt_valatt(x, weights, **heads)

    assert_agree(to_itself, normal(5, 3, 24).astype("float32"), tolerance=1e-4)  # MXNet has no other type
