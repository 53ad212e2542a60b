"""Losses: weights, callables, parts, arguments, sizes, and that a weight has an effect."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from multifit import DataError, LossSpec, SpecError

import mxnet as mx  # isort: skip

from .setups import BOTH, CE, L2, Setup, around, arrays, fault

WEIGHT = "it must be a finite number of at least 0, or a function of the state"


def amounts(shape: tuple[int, ...]) -> Callable[[list], list]:
    return lambda slots: [[slots[0], slots[1], np.ones(shape, "float32")]]


# fmt: off
FAULTS = [
    *(fault(f"weight {value!r}", lambda s, value=value: s.with_loss(CE(), weight=value),
        f'losses["digit"]: the weight is {value!r}; {WEIGHT}')
      for value in (-0.5, float("nan"), float("inf"), "1")),
    fault("weight function returns -1", lambda s: s.with_loss(CE(), weight=lambda state: -1.0),
        f"the weight is -1.0; {WEIGHT}", "its function returned it"),
    fault("class weights without a label",
        lambda s: s.with_loss(lambda a: a, outputs="digit", class_weights=[1, 2]),
        'losses["digit"]: class_weights need a label that holds class indices, and the loss takes none'),
    *(fault(f"class weights {value!r}", lambda s, value=value: s.with_loss(CE(), class_weights=value),
        f'losses["digit"]: class_weights is {value!r}{near}; give "balanced", a number for each class, or')
      for value, near in (("balance", ' (did you mean "balanced"?)'), (3, ""), ({}, ""), ((0.0,) * 3, ""))),
    fault("a negative class weight", lambda s: s.with_loss(CE(), class_weights=[1, -2, float("nan")]),
        'losses["digit"]: class_weights[1] is -2.0; it must be a finite number of at least 0',
        "class_weights[2] is nan"),
    fault("a matrix of class weights", lambda s: s.with_loss(CE(), class_weights=np.ones((2, 3))),
        'losses["digit"]: class_weights[0] is array([1., 1., 1.]); it must be a finite number of at least 0'),
    *(fault(f"class {key!r}", lambda s, key=key: s.with_loss(CE(), class_weights={key: 2}),
        f'losses["digit"]: class_weights has the key {key!r}; keys are class indices, whole numbers from 0')
      for key in ("one", -1)),
    fault("too few class weights", lambda s: s.with_loss(CE(), class_weights=[1, 2]),
        'losses["digit"]: class_weights are 2 numbers for 3 classes'),
    fault("an unknown class", lambda s: s.with_loss(CE(), class_weights={3: 2.0}),
        'losses["digit"]: class_weights name the class 3; classes are 0 … 2'),
    fault("class weights of real values", lambda s: s.but(
        losses={"amount": LossSpec(L2(), class_weights=[1, 2])}, metrics={}, unused=["digit"]),
        'losses["amount"]: class_weights need class indices as labels, which L2Loss does not take; use'),
    fault("weights of a mean", lambda s: s.with_loss(lambda a, b: a.mean(), **BOTH, class_weights=[1, 2, 3]),
        'losses["digit"]: its weights are (8,) float32, and it returns (1,) float32; return a value for'),
    fault("unknown sample weights", lambda s: s.with_loss(CE(), sample_weight="amuont"),
        'losses["digit"]: sample_weight: there is no label "amuont" (did you mean "amount"?)'),
    fault("a label beyond the class weights",
        lambda s: s.with_loss(lambda a, b: a.sum(axis=1), **BOTH, class_weights=[1.0, 2.0]),
        'losses["digit"]: the label "digit" (8,) float32 holds 2, ', "classes are 0 … 1"),
    fault("fn cannot be called", lambda s: s.with_loss("softmax"),
        "losses[\"digit\"]: 'softmax' cannot be called; give a loss of PyTorch or Gluon, or a function"),
    fault("fn is a class", lambda s: s.with_loss(CE),
        "SoftmaxCrossEntropyLoss is a class; give an instance: SoftmaxCrossEntropyLoss()"),
    fault("no fn, two outputs", lambda s: s.with_loss(None, outputs=["digit", "amount"]),
        "with fn=None one output is the loss itself, but 2 are named: outputs.digit, outputs.amount"),
    fault("no output", lambda s: s.with_loss(CE(), arguments=["labels.digit", "x"]),
        'losses["digit"]: takes no output of the net, so there is nothing to train; name one with outputs='),
    fault("minimize not in returns", lambda s: s.with_loss(CE(), returns=["cls", "box"], minimize="boxes"),
        'losses["digit"]: minimize is \'boxes\' (did you mean "box"?), but returns names "cls", "box"'),
    fault("minimize without returns", lambda s: s.with_loss(CE(), minimize="sum"),
        "minimize is 'sum', but returns is not given; name what the loss returns: returns=['sum', ...]"),
    fault("part twice", lambda s: s.with_loss(CE(), returns=["a", "a"]), 'returns names "a" 2 times'),
    fault("too many arguments", lambda s: s.with_loss(lambda a: a, **BOTH),
        'losses["digit"]: is called with 2 arguments ("outputs.digit", "labels.digit"), but takes (a): too',
        "name as many outputs and labels, in that order"),
    fault("parts without names", lambda s: s.with_loss(lambda a, b: (a, b), **BOTH),
        "returns 2 parts, [(8, 3) float32, (8,) float32]; name them with returns=[...]"),
    fault("fewer parts than names", lambda s: s.with_loss(CE(), **BOTH, returns=["cls", "box"]),
        "returns 1 part, [(8,) float32], but returns= names 2: cls, box"),
    fault("returns None", lambda s: s.with_loss(lambda a, b: None, **BOTH),
        "returns None; a loss must return an"),
    fault("returns integers", lambda s: s.with_loss(lambda a, b: a.astype("int32"), **BOTH),
        'returns (8, 3) int32; a loss must return float32: cast it, with astype("float32")'),
    *(fault(f"normalizer {value!r}",
        lambda s, value=value: s.with_loss(CE(), normalize_by=lambda slots: value),
        f"losses[\"digit\"]: normalize_by is {value!r}; it must be, or return, an array or a finite number",
        "whose sum is at least 0")  # else it would train uphill, or spoil everything
      for value in ("8", -5.0, float("nan"), np.array([2.0, -3.0]), np.array([1.0, float("nan")]))),
    fault("sizes differ", lambda s: s.but(data=amounts((8, 2))(s.data[0])),
        'losses["amount"]: output "amount" (8, 1) float32 and label "amount" (8, 2) float32 differ in size',
        "element by element: fix the net's last layer or the label"),
    fault("class labels differ",
        lambda s: s.but(data=[[s.data[0][0], np.ones((8, 2), "float32"), s.data[0][2]]]),
        'output "digit" (8, 3) float32 and label "digit" (8, 2) float32 do not fit',
        "the output's 8 rows of 3 classes need one class index each"),
    *(fault(f"class indices of {shape} as probabilities",
        lambda s, shape=shape: s.with_loss(CE(sparse_label=False), **BOTH).but(
            data=[[s.data[0][0], np.ones(shape, "float32"), s.data[0][2]]]),
        f'losses["digit"]: output "digit" (8, 3) float32 and label "digit" {shape} float32 differ in size',
        "give a probability for each class, or class indices and sparse_label=True")
      for shape in ((8,), (8, 1), (8, 6))),
    fault("no loss at all",
        lambda s: s.but(losses=None, metrics={"a": s.spec["metrics"]["accuracy"]}, unused=["amount"]),
        "1 problem found:\n  1. losses: there is none to train on; declare at least one in the TaskSpec"),
    # (4, 1) and (1, 4): Gluon reshapes one like the other, and says nothing
    fault("samples mixed", lambda s: around(lambda d, x: d(x)[:, :1].reshape((1, -1)), losses={"digit": L2()},
            data=[[np.ones((4, 6), "float32"), np.ones((4, 1), "float32")]]),
        '"digit" (1, 4) float32', '"digit" (4, 1) float32', "across the batch axis"),
    # with whole numbers, the engine would fail in the background, and may not recover
    fault("whole numbers", lambda s: around(lambda dense, x: dense(x).astype("int32")),
        'the output "digit" is (8, 3) int32; a loss needs real numbers'),
    fault("no gradient", lambda s: around(lambda dense, x: paused(lambda: dense(x))),
        "outputs: autograd has computed none of them from parameters that are trained"),
]
# fmt: on


def paused(function: Callable[[], Any]) -> Any:
    with mx.autograd.pause():
        return function()


@pytest.mark.parametrize(("change", "texts"), FAULTS)
def test_a_wrong_loss_is_an_error(setup: Setup, change: Any, texts: tuple) -> None:
    change(setup).refused(SpecError, *texts)


def test_a_negative_weight_of_a_sample_is_an_error(setup: Setup) -> None:
    faulty = setup.with_loss(CE(), **BOTH, sample_weight="amount")
    least = f"{arrays()[2].min():g}"
    faulty.refused(DataError, f'sample_weight: the slot "amount" holds {least}; weights must be at least 0')


def test_a_loss_that_ignores_its_weight() -> None:
    """gluoncv's is built on SoftmaxOutput, which makes its own gradient (pitfall 1)."""
    losses = pytest.importorskip("gluoncv.loss")
    faulty = around(
        lambda dense, x: dense(x).reshape((-1, 3, 1, 1)),
        losses={"digit": LossSpec(losses.MixSoftmaxCrossEntropyLoss(aux=False), weight=0.5)},
    )
    data = [[faulty.data[0][0], faulty.data[0][1].reshape(8, 1, 1)]]
    faulty.but(data=data).refused(
        SpecError,
        'losses["digit"]: MixSoftmaxCrossEntropyLoss ignores its weight',
        "gradient four times as large gave the same gradient",
        "multifit.losses.SegmentationCELoss",
    )


ACCEPTED: dict[str, Callable[..., Any]] = {
    "flat": lambda a, b: mx.nd.relu(a - 100).sum(axis=1),  # all gradients are 0: undecidable, and no offence
    "detached": lambda a, b: mx.nd.BlockGrad(a).sum(axis=1) + mx.nd.ones_like(b),
    "nothing to learn": lambda a, b: mx.nd.zeros_like(b),  # no part of the graph: no sample had anything
    "a gradient in training alone":
        lambda a, b: a.square().sum(axis=1) if mx.autograd.is_training() else mx.nd.ones_like(b),
}  # fmt: skip
CONSTANT: dict[str, Callable[..., Any]] = {
    "from labels alone": lambda a, b: mx.nd.ones_like(b),
    "pause": lambda a, b: paused(lambda: a.square().sum(axis=1)),
}


@pytest.mark.parametrize("loss", ACCEPTED.values(), ids=ACCEPTED)
def test_a_loss_that_obeys_its_weight_is_accepted(setup: Setup, loss: Any) -> None:
    setup.with_loss(loss, **BOTH).trains()


@pytest.mark.parametrize("loss", CONSTANT.values(), ids=CONSTANT)
def test_a_loss_without_a_gradient_is_refused_unless_its_weight_is_0(setup: Setup, loss: Any) -> None:
    setup.with_loss(loss, **BOTH, weight=lambda state: 0.5).refused(
        SpecError, 'losses["digit"]: returns numbers that autograd has not computed from the outputs'
    )
    figures = setup.with_loss(loss, **BOTH).make().evaluate(setup.data, [])
    assert figures["digit"] > 0
    setup.with_loss(loss, **BOTH, weight=0).trains()
