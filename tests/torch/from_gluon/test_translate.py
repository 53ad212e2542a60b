"""Symbols become modules; what cannot be translated is refused by name."""

import gc
import linecache

import numpy as np
import pytest
import torch

from multifit import SpecError
from multifit.gluon.compat import mx
from multifit.torch.from_gluon.translate import tensors_of, translate, untranslated

S = mx.sym
X = S.var("x")


def dense(**options):
    return S.FullyConnected(X, S.var("w"), S.var("b"), num_hidden=2, **options)


ARRAYS = {"w": np.ones((2, 3)), "b": np.arange(2.0)}


def test_parameters_bear_the_names_given():
    tensors = tensors_of(ARRAYS, ["w"])
    module = translate(dense().tojson(), ["x"], tensors, names={"w": "body.0.weight", "b": "body.0.bias"})
    assert [name for name, _ in module.named_parameters()] == ["body.0.weight"]
    assert [name for name, _ in module.named_buffers()] == ["body.0.bias"]
    assert module.get_parameter("body.0.weight") is tensors["w"]
    (out,) = module(torch.ones(1, 3, dtype=torch.float64))
    assert out.tolist() == [[3, 4]]


def test_modules_share_tensors():
    tensors = tensors_of(ARRAYS, ["w", "b"])
    symbol = S.Dropout(dense()).tojson()
    training, evaluating = (translate(symbol, ["x"], tensors, mode) for mode in (True, False))
    assert training.w is evaluating.w
    x = torch.ones(50, 3, dtype=torch.float64)
    assert (training(x)[0] == 0).any() and not (evaluating(x)[0] == 0).any()


def test_the_source_of_a_module_is_freed_with_it():
    module = translate(dense().tojson(), ["x"], tensors_of(ARRAYS))
    name = type(module).forward.__code__.co_filename
    assert any("def forward" in line for line in linecache.getlines(name))  # for tracebacks
    del module
    gc.collect()
    assert not linecache.getlines(name)


def test_names_that_are_no_identifiers():
    symbol = S.Group([S.var("0:a") * 2, S.var("b.c")])
    module = translate(symbol.tojson(), ["0:a", "b.c"], {})
    assert [out.tolist() for out in module(torch.ones(1), torch.zeros(1))] == [[2], [0]]


def test_outputs_that_are_read_of_several():
    first, second = S.split(X, num_outputs=2, axis=0)
    module = translate(S.Group([second, first + 1]).tojson(), ["x"], {})
    assert [out.tolist() for out in module(torch.tensor([1.0, 2]))] == [[2], [2]]


def test_everything_that_has_no_translation_is_named_at_once():
    symbol = S.Group(
        [
            S.Correlation(X, X, name="flow"),
            S.khatri_rao(X, X, name="product"),
            S.Pooling(X, kernel=(2, 2), pooling_convention="same", name="pool"),
            S.Convolution(X, kernel=(1, 1), num_filter=1, layout="NHWC", name="conv"),
            S.Convolution(X, kernel=(1, 1), num_filter=1, layout="NHWC"),
        ]
    )
    with pytest.raises(SpecError) as caught:
        translate(symbol.tojson(), ["x"], {})
    lines = [problem.message for problem in caught.value.problems]
    assert lines[0] == (
        'the operator Convolution (2 nodes, "conv" the first): layout=NHWC is not translated; '
        "valid: None, 'NCW', 'NCHW', 'NCDHW'"
    )
    assert lines[1] == 'the operator Correlation (1 node, "flow" the first): it has no translation'
    assert "pooling_convention=same is not translated; valid: 'valid', 'full'" in lines[2]
    assert 'khatri_rao (1 node, "product" the first)' in lines[3]
    assert "the variables " in lines[4] and '"conv_weight"' in lines[4]
    assert [problem.message for problem in untranslated(symbol.tojson())] == lines[:4]


def test_attributes_that_are_not_translated():
    states = [S.var(name) for name in "psc"]
    clipped = S.clip(X, a_min=0, a_max=1).tojson()
    messages = {
        S.RNN(X, *states, mode="lstm", state_size=2, num_layers=1, projection_size=1).tojson(): (
            "projection_size=1 is not translated; valid: None"
        ),
        S.contrib.ROIAlign(X, X, pooled_size=(2, 2), spatial_scale=1).tojson(): (
            "its default of sample_ratio is not translated; valid: 1, 2, 3, 4, 5, 6, 7, 8"
        ),
        S.broadcast_axis(X, size=2).tojson(): (
            "its default of axis is not translated; valid: values of its type"
        ),
        S.Cast(X, dtype="float16").tojson().replace("float16", "complex"): (
            "dtype=complex is not translated; valid: float16, bfloat16"
        ),
        clipped.replace(
            '"a_min": "0"', '"a_min": "low"'
        ): "a_min=low is not translated; valid: values of its type",
        clipped.replace(
            "a_min", "a_mini"
        ): 'its attribute a_mini=0 is not translated (did you mean "a_min"?)',
    }
    for symbol, message in messages.items():
        (problem,) = untranslated(symbol)
        assert message in problem.message
