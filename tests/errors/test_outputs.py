"""What a net returns against the outputs declared: number, structure, keys, kinds."""

from typing import Any

import numpy as np
import pytest

from multifit import MetricSpec, SpecError, TaskSpec

import mxnet as mx  # isort: skip
from mxnet import gluon

from .setups import around

PAIR = {
    "outputs": ["digit", "amount"],
    "losses": {"digit": gluon.loss.SoftmaxCrossEntropyLoss()},
    "unused": ["outputs.amount"],
}
# fmt: off
RETURNED = {
    "fewer": (lambda d, x: d(x),
        "outputs: 2 declared (digit, amount), the net returns 1 array: (8, 3) float32; name as many"),
    "more": (lambda d, x: (d(x), d(x), x),
        "the net returns 3 arrays: [(8, 3) float32, (8, 3) float32, (8, 6) float32]",
        "or end outputs with ... to ignore the rest"),
    "nested": (lambda d, x: (d(x), [d(x)]),
        "returns 2 arrays: [(8, 3) float32, [(8, 3) float32]]; nest the names as the net nests"),
    "None": (lambda d, x: (d(x), None), "returns 1 array and None: [(8, 3) float32, None]"),
    "numpy": (lambda d, x: (d(x), d(x).asnumpy()),
        '"amount" as ndarray; every output that is declared must be an'),
    "key missing": (lambda d, x: {"digit": d(x), "amont": d(x)},
        '1 problem found:\n  1. outputs: the net returns no "amount" (did you mean "amont"?); ',
        'it returns "digit", "amont"'),
    "key more": (lambda d, x: {"digit": d(x), "amount": d(x), "boxes": x},
        'outputs: the net also returns "boxes", which is not declared; name it (and list it in unused=)'),
    "dict within": (lambda d, x: [{"digit": d(x)}, d(x)], '[{"digit": (8, 3) float32}, (8, 3) float32]'),
}
# fmt: on


@pytest.mark.parametrize(("function", "texts"), [(f, t) for f, *t in RETURNED.values()], ids=RETURNED)
def test_outputs_that_do_not_fit(function: Any, texts: list) -> None:
    faulty = around(function, **PAIR)
    faulty.refused(SpecError, *texts)
    faulty.net.function = lambda d, x: (d(x), x)
    faulty.trains()


def test_another_structure_when_evaluating() -> None:
    """SSD returns something else then; the message says what such a net needs."""
    net = around(lambda d, x: (d(x), x) if mx.autograd.is_training() else (d(x), x, x), **PAIR)
    message = net.but(val_data=net.data).refused(SpecError)
    assert "the net when evaluating returns 3 arrays" in message
    assert "a net that returns something else when evaluating needs evaluate=TaskSpec(...)" in message
    outputs, metrics = ["digit", ...], {"accuracy": MetricSpec(mx.metric.Accuracy(), "digit", "digit")}
    evaluate = TaskSpec(outputs=outputs, labels=["digit"], inputs=["x"], metrics=metrics)
    net.but(val_data=net.data, evaluate=evaluate).trains()


def test_a_forward_that_returns_nothing() -> None:
    faulty = around(lambda d, x: d(x), **PAIR).but(forward=lambda net, slots: None)
    faulty.refused(SpecError, "2 declared (digit, amount), forward= returns 0 arrays and None: None")


def test_predicting_needs_the_declared_outputs_too() -> None:
    estimator = around(lambda d, x: d(x), **PAIR).make()
    with pytest.raises(SpecError, match=r"2 declared .*, the net when evaluating returns 1 array"):
        estimator.predict(np.ones((2, 6), "float32"))


def test_too_many_inputs() -> None:
    """How many inputs a net takes is its own business: Python's words are the clearest."""
    faulty = around(lambda d, x: d(x), inputs=["x", "y"])
    faulty = faulty.but(data=[[faulty.data[0][0], *faulty.data[0]]])
    message = faulty.refused(TypeError, "raised in the net's forward pass (train)")
    assert "called with x (8, 6) float32, y (8, 6) float32" in message


# fmt: off
NONE = {
    "between": (lambda d, x: [d(x), None, d(x)], "return arrays alone, or pick them, with forward="),
    "last": (lambda d, x: [d(x), d(x), None], "leave it out, or end outputs with ... to ignore"),
}
# fmt: on


@pytest.mark.parametrize(("function", "way_out"), NONE.values(), ids=NONE)
def test_none_among_outputs_says_what_works(function: Any, way_out: str) -> None:
    faulty = around(function, **PAIR)
    found = "2 declared (digit, amount), the net returns 2 arrays and None: ["
    faulty.refused(SpecError, found, f"None cannot be an output: {way_out}")
    pick = lambda net, slots: [each for each in net(slots["x"]) if each is not None]  # noqa: E731
    faulty.but(forward=pick).trains()


def test_what_is_wrong_in_both_stages_is_reported_once() -> None:
    faulty = around(lambda d, x: d(x), **PAIR)
    faulty = faulty.but(val_data=faulty.data)
    assert faulty.refused(SpecError).startswith("1 problem found:")
