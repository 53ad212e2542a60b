"""Trees without an engine, and the arrays in batches of whatever library."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from multifit.engines.batch import arrays_in, as_numpy, names_in
from multifit.engines.identity import parameter_differences
from multifit.engines.trees import Trees


def test_numpys_arrays_need_no_engine(tmp_path: Path) -> None:
    Trees().write(tmp_path, "tree", {"a": (np.arange(3), 1.5)})
    values, number = Trees().read(tmp_path, "tree")["a"]
    assert values.tolist() == [0, 1, 2] and number == 1.5


def test_arrays_of_an_engine_are_unknown(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="tree is a .*SimpleNamespace, which cannot be saved; valid are None"
    ):
        Trees().write(tmp_path, "tree", SimpleNamespace())
    (tmp_path / "tree.json").write_text('{"arrays": 0, "tree": {"tensor": 0}}')
    with pytest.raises(ValueError, match="damaged .*is no value of a tree"):
        Trees().read(tmp_path, "tree")


def test_a_shape_that_is_not_known_yet_fits_any() -> None:
    saved = {"a": ((2, 3), "float32"), "b": ((4,), "float32")}
    assert not parameter_differences(saved, {"a": (None, "float32"), "b": ((0,), "float32")})
    assert parameter_differences(saved, {"a": (None, "float64"), "b": ((4,), "float32")}) == [
        'parameters["a"].dtype: "float32" in the file, "float64" here'
    ]


def tensor(dtype: str) -> Any:
    """Return what has all that a tensor of PyTorch's has."""
    made = SimpleNamespace(dtype=f"torch.{dtype}", shape=(2,), float=lambda: tensor("float32"))
    made.detach = made.cpu = lambda: made
    made.numpy = lambda: np.ones(2, dtype)
    return made


@pytest.mark.parametrize(
    "value",
    [
        tensor("float32"), tensor("bfloat16"), np.ones(2, "float32"),
        SimpleNamespace(asnumpy=lambda: np.ones(2, "float32")),
        SimpleNamespace(toarray=lambda: np.ones(2, "float32")),
    ],
)  # fmt: skip
def test_arrays_of_all_libraries_become_numpys(value: Any) -> None:
    assert as_numpy(value).tolist() == [1, 1] and as_numpy(value).dtype == "float32"
    assert as_numpy("text") == "text"  # other values stay


def test_a_data_batch_is_known_by_its_attributes() -> None:
    part = SimpleNamespace(data=[np.arange(3)], label=[np.arange(3) + 5], pad=1, provide_data=[("x", (3,))])
    assert [each.tolist() for each in arrays_in(part, 0, as_numpy)] == [[0, 1], [5, 6]]
    assert [each.tolist() for each in arrays_in([part, part], 0, as_numpy)] == [[0, 1, 0, 1], [5, 6, 5, 6]]
    assert names_in([part]) == ["x"] and names_in(np.ones(2)) == []
