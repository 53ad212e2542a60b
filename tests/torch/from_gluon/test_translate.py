"""Symbols become modules; what cannot be translated is refused by name."""

import gc
import linecache
from typing import Any

import numpy as np
import pytest
import torch

from multifit import SpecError
from multifit.gluon.compat import mx
from multifit.torch.from_gluon.translate import tensors_of, translate, untranslated

S = mx.sym
X = S.var("x")
DENSE = S.FullyConnected(X, S.var("w"), S.var("b"), num_hidden=2).tojson()
ARRAYS = {"w": np.ones((2, 3)), "b": np.arange(2.0)}


def test_parameters_bear_the_names_given_and_are_shared() -> None:
    tensors, names = tensors_of(ARRAYS, ["w"]), {"w": "body.0.weight", "b": "body.0.bias"}
    module, other = (translate(DENSE, ["x"], tensors, mode, names) for mode in (True, False))
    assert [name for name, _ in module.named_parameters()] == ["body.0.weight"]
    assert [name for name, _ in module.named_buffers()] == ["body.0.bias"]
    assert all(each.get_parameter("body.0.weight") is tensors["w"] for each in (module, other))
    (out,) = module(torch.ones(1, 3, dtype=torch.float64))
    assert out.tolist() == [[3, 4]]


def test_the_source_of_a_module_is_freed_with_it() -> None:
    module = translate(DENSE, ["x"], tensors_of(ARRAYS))
    name = type(module).forward.__code__.co_filename
    assert any("def forward" in line for line in linecache.getlines(name))  # for tracebacks
    del module
    gc.collect()
    assert not linecache.getlines(name)


FIRST, SECOND = S.split(X, num_outputs=2, axis=0)
ODD: dict[str, tuple[Any, dict[str, list[float]], list[list[float]]]] = {
    "names that are no identifiers": (
        S.Group([S.var("0:a") * 2, S.var("b.c")]),
        {"0:a": [1], "b.c": [0]},
        [[2], [0]],
    ),
    "some outputs of several": (S.Group([SECOND, FIRST + 1]), {"x": [1, 2]}, [[2], [2]]),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_symbols(name: str) -> None:
    symbol, inputs, expected = ODD[name]
    module = translate(symbol.tojson(), list(inputs), {})
    assert [out.tolist() for out in module(*map(torch.tensor, inputs.values()))] == expected


def test_everything_that_has_no_translation_is_named_at_once() -> None:
    conv = {"kernel": (1, 1), "num_filter": 1, "layout": "NHWC"}
    symbol = S.Group([
        S.Correlation(X, X, name="flow"),
        S.khatri_rao(X, X, name="product"),
        S.Pooling(X, kernel=(2, 2), pooling_convention="same", name="pool"),
        S.Convolution(X, **conv, name="conv"),
        S.Convolution(X, **conv),
    ])  # fmt: skip
    with pytest.raises(SpecError) as caught:
        translate(symbol.tojson(), ["x"], {})
    lines = [problem.message for problem in caught.value.problems]
    assert lines[:2] == [
        'the operator Convolution (2 nodes, "conv" the first): layout=NHWC is not translated; '
        "valid: None, 'NCW', 'NCHW', 'NCDHW'",
        'the operator Correlation (1 node, "flow" the first): it has no translation',
    ]
    assert "pooling_convention=same is not translated; valid: 'valid', 'full'" in lines[2]
    assert 'khatri_rao (1 node, "product" the first)' in lines[3]
    assert "the variables " in lines[4] and '"conv_weight"' in lines[4]
    assert [problem.message for problem in untranslated(symbol.tojson())] == lines[:4]


CLIPPED = S.clip(X, a_min=0, a_max=1).tojson()
PROJECTED = S.RNN(*map(S.var, "xpsc"), mode="lstm", state_size=2, num_layers=1, projection_size=1)
REFUSED = {
    "projection_size=1 is not translated; valid: None": PROJECTED.tojson(),
    "its default of sample_ratio is not translated; valid: 1, 2, 3, 4, 5, 6, 7, 8": (
        S.contrib.ROIAlign(X, X, pooled_size=(2, 2), spatial_scale=1).tojson()
    ),
    "its default of axis is not translated; valid: values of its type": S.broadcast_axis(X, size=2).tojson(),
    "dtype=complex is not translated; valid: float16, bfloat16": (
        S.Cast(X, dtype="float16").tojson().replace("float16", "complex")
    ),
    "a_min=low is not translated; valid: values of its type": CLIPPED.replace(
        '"a_min": "0"', '"a_min": "low"'
    ),
    'its attribute a_mini=0 is not translated (did you mean "a_min"?)': CLIPPED.replace("a_min", "a_mini"),
}


@pytest.mark.parametrize("message", REFUSED)
def test_attributes_that_are_not_translated(message: str) -> None:
    (problem,) = untranslated(REFUSED[message])
    assert message in problem.message
