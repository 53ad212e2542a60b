"""Checks of data, of what nets return, and of values; and how messages describe arrays."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from multifit.spec.checks import describe
from multifit.spec.checks.data import bind_slots, loader_problems, one_shot, slot_problems
from multifit.spec.checks.results import bind_outputs
from multifit.spec.checks.values import elementwise_problem, label_problems
from multifit.utils.text import counted, quoted, shown

A, B, C = (np.full((2, n + 1), n, "float32") for n in range(3))

# ---- what a net returns

FIT: list[tuple[Any, Any, dict[str, Any]]] = [
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
    ((("p/a",), ("q/c",)), [{"a": A}, {"c": C}], {"p/a": (0, "a"), "q/c": (1, "c")}),
]
UNFIT: list[tuple[Any, Any]] = [
    (("a", "b"), A), (("a",), [A, B]), (("a", "b", ...), [A]), ((("a", "b"),), [A]), (("a", "b"), [A, [B]]),
    (("a", "b"), [A, {"b": B}]), (("a",), None), (("a",), []), ((("a",), "b"), [None, B]),
]  # fmt: skip


@pytest.mark.parametrize(("declared", "result", "paths"), FIT)
def test_outputs_that_fit(declared: Any, result: Any, paths: dict[str, Any]) -> None:
    assert bind_outputs(declared, result) == (paths, [])


@pytest.mark.parametrize(("declared", "result"), UNFIT)
def test_outputs_that_do_not_fit(declared: Any, result: Any) -> None:
    _, (problem,) = bind_outputs(declared, result, "the model")
    assert problem.kind == "spec"
    assert problem.message.startswith("outputs: ") and "the model returns" in problem.message


# ---- data


@pytest.mark.parametrize(
    ("batch", "needed", "slots"),
    [
        ([A, B], True, {"x": A, "y": B}),
        ({"y": B, "x": A}, True, {"x": A, "y": B}),
        ([A], False, {"x": A}),
        ({"x": A}, False, {"x": A}),
        ([A], True, None),
        ({"x": A}, True, None),
    ],
)
def test_slots_in_order_by_key_and_inputs_alone(batch: Any, needed: bool, slots: Any) -> None:
    found, problems = bind_slots(["x", "y"], ["x"], batch, labels_needed=needed)
    assert len(problems) == 1 if slots is None else (found, problems) == (slots, [])


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


class Resettable:
    def reset(self) -> None: ...

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        raise StopIteration


class NoLength:
    """Has a length that asks for another that does not exist, like a DataLoader with a custom sampler."""

    def __len__(self) -> int:
        return len(iter(()))  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[int]:
        return iter([1])


def test_loaders() -> None:
    for loader in ([1], (1,), Resettable(), NoLength(), range(3)):
        assert not one_shot(loader) and loader_problems("data", loader, once=False) == []
    for loader in (iter([1]), (n for n in [1])):
        assert one_shot(loader) and loader_problems("data", loader, once=True) == []
        assert "can be read only once" in loader_problems("data", loader, once=False)[0].message
    for nothing in (3, None, "train", {}, []):
        (problem,) = loader_problems("data", nothing, once=True)
        assert problem.kind == "data" and problem.message.startswith("data is ")


# ---- values


@pytest.mark.parametrize("dtype", ["float32", "int32", "int8", "uint8"])
def test_class_indices(dtype: str) -> None:
    assert label_problems("l", "y", np.array([[0, 1], [2, 0]], dtype), 3) == []
    assert label_problems("l", "y", np.array([], dtype), 3) == []
    (problem,) = label_problems("l", "y", np.array([0, 3], dtype), 3)
    assert f'l: the label "y" (2,) {dtype} holds 3, which would be taken for class 2' in problem.message


@pytest.mark.parametrize("value", [0.5, np.nan, np.inf])
def test_not_a_class_index(value: float) -> None:
    (problem,) = label_problems("l", "y", np.array([0, value]), 3)
    assert f"holds {value:g}, which is not a class index and would be truncated" in problem.message
    declared = 'if it means "no label", declare LabelSpec("y", missing="nan"); otherwise give whole numbers'
    assert (declared in problem.message) == np.isnan(value)


@pytest.mark.parametrize(
    ("shape", "of_label", "message"),
    [
        ((8, 1), (8, 1), None),
        ((8, 1), (8,), None),
        ((8, 2, 3), (8, 6), None),
        ((8, 1), (8, 2), 'l: output "o" (8, 1) float32 and label "y" (8, 2) float32 differ in size'),
        ((4, 1), (1, 4), "match only by reshaping across the batch axis, which mixes samples"),
        ((4, 2), (8,), "across the batch axis"),
    ],
)
def test_sizes(shape: Any, of_label: Any, message: str | None) -> None:
    out, label = (np.zeros(each, "float32") for each in (shape, of_label))
    found = elementwise_problem("l", ("o", out), ("y", label))
    assert found is None if message is None else message in (found or "")


# ---- arrays in messages


class OfAClass:
    """As MXNet's arrays: the dtype is numpy.float32 itself."""

    shape = [2, 3]
    dtype = np.float32


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.ones((8, 1), "float32"), "(8, 1) float32"),
        (np.array(["a", "bc"]), "(2,) string"),
        (np.array([b"a"]), "(1,) string"),
        (np.array([{}], dtype=object), "(1,) object"),
        (OfAClass(), "(2, 3) float32"),
        (None, "None"),
        (3, "int"),
        ([A, (A, None)], "[(2, 1) float32, [(2, 1) float32, None]]"),
        ({"a": [A]}, '{"a": [(2, 1) float32]}'),
    ],
)
def test_descriptions(value: object, text: str) -> None:
    assert describe.structure(value) == text


def test_descriptions_of_many() -> None:
    assert describe.arrays([]) == "nothing" and describe.arrays([None, 3]) == "None, int"
    assert describe.arrays([3] * 11).endswith("int, int, and 3 more")


def test_values_and_numbers_in_messages() -> None:
    assert shown(np.arange(6).reshape(3, 2)) == "array([[0, 1], [2, 3], [4, 5]])"
    assert len(shown(list(range(1000)))) == 80 and quoted(["a", 3]) == '"a", "3"' and quoted([]) == "none"
    assert [counted(count, "box", "boxes") for count in (0, 1, 2)] == ["0 boxes", "1 box", "2 boxes"]
