"""Label values, sizes and loaders."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from multifit.spec.checks.data import loader_problems, one_shot
from multifit.spec.checks.values import elementwise_problem, label_problems


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


def sizes(*shapes: tuple) -> Any:
    out, label = (np.zeros(shape, "float32") for shape in shapes)
    return elementwise_problem("l", ("o", out), ("y", label))


def test_sizes() -> None:
    assert sizes((8, 1), (8, 1)) is None
    assert sizes((8, 1), (8,)) is None
    assert sizes((8, 2, 3), (8, 6)) is None
    assert 'l: output "o" (8, 1) float32 and label "y" (8, 2) float32 differ in size' in sizes((8, 1), (8, 2))
    assert "match only by reshaping across the batch axis, which mixes samples" in sizes((4, 1), (1, 4))
    assert "across the batch axis" in sizes((4, 2), (8,))


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
        assert not one_shot(loader)
        assert loader_problems("data", loader, once=False) == []
    for loader in (iter([1]), (n for n in [1])):
        assert one_shot(loader)
        assert loader_problems("data", loader, once=True) == []
        assert "can be read only once" in loader_problems("data", loader, once=False)[0].message
    for nothing in (3, None, "train", {}, []):
        (problem,) = loader_problems("data", nothing, once=True)
        assert problem.kind == "data"
        assert problem.message.startswith("data is ")
