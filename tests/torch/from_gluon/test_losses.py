"""Operators whose gradient is that of a loss."""

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from multifit.gluon.compat import mx
from multifit.torch.from_gluon.translate import translate
from tests.torch.from_gluon.agreement import assert_agree, normal

S = mx.sym
TOLERANCE = 1e-7  # MXNet keeps the scale of gradients in float32
NORMALIZATIONS = ["null", "batch", "valid"]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    kind=st.sampled_from(["flat", "preserve", "multi"]),
    ignore=st.booleans(),
    normalization=st.sampled_from(NORMALIZATIONS),
    scale=st.sampled_from([1.0, 2.5]),
)
def test_softmax_output(kind, ignore, normalization, scale):
    shape = {"flat": (4, 5), "preserve": (2, 3, 5), "multi": (2, 5, 3)}[kind]
    positions = {"flat": (4,), "preserve": (2, 3), "multi": (2, 3)}[kind]
    labels = np.random.RandomState(0).randint(-1, 7, positions).astype("float64")  # some of them no classes
    options = {"multi_output": kind == "multi", "preserve_shape": kind == "preserve", "use_ignore": ignore}
    options.update(normalization=normalization, grad_scale=scale, ignore_label=2)
    assert_agree(
        lambda x, y: S.SoftmaxOutput(x, y, **options),
        normal(*shape),
        labels,
        constant=(1,),
        tolerance=TOLERANCE,
    )


def test_softmax_output_of_probabilities():
    probabilities = np.abs(normal(4, 5))
    assert_agree(partial(S.SoftmaxOutput, grad_scale=2.0), normal(4, 5), probabilities, constant=(1,))


@pytest.mark.parametrize(
    "name", ["LinearRegressionOutput", "LogisticRegressionOutput", "MAERegressionOutput"]
)
def test_regression_outputs(name):
    assert_agree(
        partial(getattr(S, name), grad_scale=0.5),
        normal(4, 5),
        normal(4, 5, seed=1),
        constant=(1,),
        tolerance=TOLERANCE,
    )
    assert_agree(getattr(S, name), normal(4, 1), normal(4), constant=(1,))


@pytest.mark.parametrize("blank", ["first", "last"])
@pytest.mark.parametrize("given", [(), ("data",), ("label",), ("data", "label")])
@pytest.mark.parametrize("steps", [6, 3])
def test_ctc_loss(steps, given, blank):
    end = 0 if blank == "first" else -1
    labels = np.array([[1, 2, 2], [3, end, end], [2, 1, end]], "float32")
    lengths = {"data": [steps, steps - 1, steps], "label": [3, 1, 2]}
    options = {f"use_{each}_lengths": each in given for each in lengths}
    (losses,) = assert_agree(
        lambda x, y, *z: S.CTCLoss(
            x, y, blank_label=blank, **options, **{f"{name}_lengths": each for name, each in zip(given, z)}
        ),
        normal(steps, 3, 5).astype("float32"),
        labels,
        *[np.array(lengths[each], "float32") for each in given],
        constant=range(0 if steps == 3 else 1, 2 + len(given)),  # MXNet's gradients of 0 are random numbers
        tolerance=1e-5,
    )
    assert (losses[0] == 0) == (steps == 3)


def test_softmax_output_of_ambiguous_axes():
    module = translate(S.SoftmaxOutput(S.var("x"), S.var("y")).tojson(), ["x", "y"], {})
    with pytest.raises(ValueError, match="needs multi_output or preserve_shape"):
        module(torch.zeros(2, 3, 4), torch.zeros(2))
