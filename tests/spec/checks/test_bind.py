"""Binding outputs and slots to their names."""

from typing import Any

import numpy as np
import pytest

from multifit.spec.checks.data import bind_slots, slot_problems
from multifit.spec.checks.results import bind_outputs

A, B, C = (np.full((2, n + 1), n, "float32") for n in range(3))
OUTPUTS = [
    (("a",), A, {"a": ()}),
    (("a", ...), A, {"a": ()}),
    (("a", "b"), [A, B], {"a": (0,), "b": (1,)}),
    (("a", "b"), (A, B), {"a": (0,), "b": (1,)}),
    (("a",), [A], {"a": (0,)}),
    (("a", ...), [A, [B, C]], {"a": (0,)}),
    ((("a", ...), "b"), [[A, C], B], {"a": (0, 0), "b": (1,)}),
    ((("a",), "b"), [A, B], {"a": (0,), "b": (1,)}),
    (("a", "b"), {"b": B, "a": A}, {"a": ("a",), "b": ("b",)}),
    (("a", ...), {"b": B, "a": A}, {"a": ("a",)}),
    ((("a", "b"), "c"), ({"b": B, "a": A}, C), {"a": (0, "a"), "b": (0, "b"), "c": (1,)}),
    (
        (("p/a", "p/b"), ("q/c",)),
        [{"a": A, "b": B}, {"c": C}],
        {"p/a": (0, "a"), "p/b": (0, "b"), "q/c": (1, "c")},
    ),
]


@pytest.mark.parametrize(("declared", "result", "paths"), OUTPUTS)
def test_outputs_that_fit(declared: tuple, result: Any, paths: dict) -> None:
    assert bind_outputs(declared, result) == (paths, [])


UNFIT = [
    (("a", "b"), A),
    (("a",), [A, B]),
    (("a", "b", ...), [A]),
    ((("a", "b"),), [A]),
    (("a", "b"), [A, [B]]),
    (("a", "b"), [A, {"b": B}]),
    (("a",), None),
    (("a",), []),
    ((("a",), "b"), [None, B]),
]


@pytest.mark.parametrize(("declared", "result"), UNFIT)
def test_outputs_that_do_not_fit(declared: tuple, result: Any) -> None:
    _, (problem,) = bind_outputs(declared, result, "the model")
    assert problem.kind == "spec"
    assert problem.message.startswith("outputs: ")
    assert "the model returns" in problem.message


def test_slots_in_order_by_key_and_inputs_alone() -> None:
    order, inputs = ["x", "y"], ["x"]
    assert bind_slots(order, inputs, [A, B]) == ({"x": A, "y": B}, [])
    assert bind_slots(order, inputs, {"y": B, "x": A}) == ({"x": A, "y": B}, [])
    assert bind_slots(order, inputs, [A], labels_needed=False) == ({"x": A}, [])
    assert bind_slots(order, inputs, {"x": A}, labels_needed=False) == ({"x": A}, [])
    assert len(bind_slots(order, inputs, [A])[1]) == 1
    assert len(bind_slots(order, inputs, {"x": A})[1]) == 1


def test_each_missing_and_each_undeclared_key_is_reported_once() -> None:
    batch = {"image": A, "labl": B, "more": C}
    _, problems = bind_slots(["image", "label", "weight"], ["image"], batch)
    assert [problem.message.split(";")[0] for problem in problems] == [
        'the batch has no "label" (did you mean "labl"?)',
        'the batch has no "weight"',
        'the batch also has "more", which is not declared',
    ]


def test_slots_of_any_batch_axis() -> None:
    time_major = {"x": np.ones((5, 8, 2), "float32"), "y": np.ones((5, 8), "int32"), "state": None}
    assert slot_problems(time_major, batch_axis=1) == []
    (problem,) = slot_problems({**time_major, "y": np.ones(5)}, batch_axis=1)
    assert "has no batch axis 1" in problem.message
    (problem,) = slot_problems({**time_major, "y": np.ones((5, 7))}, batch_axis=1)
    assert "along axis 1: x (5, 8, 2) float32, y (5, 7) float64" in problem.message
